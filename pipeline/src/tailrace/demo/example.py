"""Finds the examples: beside the package in a checkout, under the environment's `share` where it is installed."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import tailrace
from tailrace.config.file import load as configured
from tailrace.demo.feed import PARTITIONS
from tailrace.demo.proof import Expected
from tailrace.errors import FunctionMissing
from tailrace.kafka.reader import Message

PACKAGE = Path(tailrace.__file__).resolve().parent
IN_CHECKOUT = PACKAGE.parent.parent / "examples"
INSTALLED = Path(sysconfig.get_path("data")) / "share" / "tailrace" / "examples"


@dataclass(frozen=True)
class Example:
    """One example: its folder, and what must come out of its input."""

    folder: Path
    expected: Callable[[Iterable[Message]], Expected]
    identity: Callable[[Message], str]

    @property
    def name(self) -> str:
        """The example's name."""
        return self.folder.name

    @property
    def pipeline(self) -> Path:
        """The pipeline's configuration."""
        return self.folder / "pipeline.yaml"

    @property
    def generator(self) -> Path:
        """The script that writes the input."""
        return self.folder / "generate.py"


@dataclass(frozen=True)
class Shown:
    """An example as the demo runs it: its topics, and what its records are called."""

    example: Example
    source: str
    sink: str
    rejected: str
    records: str
    partitions: int
    stateful: bool


def shown(name: str) -> Shown:
    """An example with one sink topic, as its own configuration has it."""
    chosen = example(name)
    pipeline = configured(chosen.pipeline).pipeline
    stateful = pipeline.checkpoint != "ledger"
    return Shown(
        example=chosen,
        source=pipeline.source.topics[0],
        sink=pipeline.sink.topic or "",
        rejected=pipeline.rejected_topic,
        records=pipeline.source.topics[0],
        # The order of two partitions is nobody's: an event of the slower one could come too late for its window.
        partitions=1 if stateful else PARTITIONS,
        stateful=stateful,
    )


def example(name: str) -> Example:
    """The example of this name."""
    folder = next((each / name for each in (IN_CHECKOUT, INSTALLED) if (each / name / "pipeline.yaml").is_file()), None)
    if folder is None:
        raise FunctionMissing(
            f"the example {name!r} is neither in {IN_CHECKOUT} nor in {INSTALLED}",
            kept="nothing was started",
            then="reinstall the package: pip install --force-reinstall tailrace",
        )
    module = load(folder / "expected.py")
    return Example(folder, module.expected, module.identity)


def load(path: Path) -> ModuleType:
    """A module of an example, under a name that no other module has."""
    name = f"tailrace_example_{path.parent.name.replace('-', '_')}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FunctionMissing(f"{path} cannot be imported", then="reinstall the package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
