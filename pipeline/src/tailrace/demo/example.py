"""Finds the examples: next to the package in a checkout, otherwise where pip put them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

import tailrace
from tailrace.config.file import load as configured
from tailrace.demo.feed import PARTITIONS
from tailrace.demo.proof import Expected
from tailrace.errors import ExtraMissing, FunctionMissing
from tailrace.kafka.reader import Message

PACKAGE = Path(tailrace.__file__).resolve().parent
PIPELINE = "pipeline.yaml"
IN_CHECKOUT = PACKAGE.parent.parent / "examples"


@dataclass(frozen=True)
class Example:
    """One example: its folder, and the expected output for its input."""

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
        return self.folder / PIPELINE

    @property
    def generator(self) -> Path:
        """The script that writes the input."""
        return self.folder / "generate.py"


@dataclass(frozen=True)
class Shown:
    """An example as the demo runs it: its topics, and the name of its records."""

    example: Example
    source: str
    sink: str
    rejected: str
    records: str
    partitions: int
    stateful: bool


def shown(name: str) -> Shown:
    """Return an example with one sink topic, with the topics from its configuration."""
    chosen = example(name)
    pipeline = configured(chosen.pipeline).pipeline
    stateful = pipeline.checkpoint != "ledger"
    return Shown(
        example=chosen,
        source=pipeline.source.topics[0],
        sink=pipeline.sink.topic or "",
        rejected=pipeline.rejected_topic,
        records=pipeline.source.topics[0],
        # Order across partitions is not guaranteed: an event of the slower one could come too late for its window.
        partitions=1 if stateful else PARTITIONS,
        stateful=stateful,
    )


def example(name: str) -> Example:
    """Return the example with this name."""
    places = [IN_CHECKOUT / name / PIPELINE, *installed(name)]
    file = next((each for each in places if each.is_file()), None)
    if file is None:
        raise FunctionMissing(
            f"the example {name!r} is in none of {', '.join(map(str, places))}",
            kept="nothing was started",
            then="reinstall the package: pip install --force-reinstall --no-deps tailrace",
        )
    try:
        module = load(file.parent / "expected.py")
    except ImportError as error:
        raise ExtraMissing.of("demo", f"the example {name!r}", error) from error
    return Example(file.parent, module.expected, module.identity)


def installed(name: str) -> list[Path]:
    """Return where pip put an example's pipeline.yaml, as it recorded: with `--user` not under Python's own `share`."""
    recorded = metadata.files("tailrace") or []
    return [
        Path(each.locate()).resolve()
        for each in recorded
        if each.parts[-4:] == ("tailrace", "examples", name, PIPELINE)
    ]


def load(path: Path) -> ModuleType:
    """Import a module of an example under a unique name."""
    name = f"tailrace_example_{path.parent.name.replace('-', '_')}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FunctionMissing(f"{path} cannot be imported", then="reinstall the package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
