"""The model of a fault scenario: what it does, which promise it attacks, and the result that it returns.

Each module of `faults.scenarios` offers a tuple SCENARIOS, where the campaign finds it; modules are listed nowhere.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka


class Expect(StrEnum):
    """What a result must show for the campaign to succeed."""

    EXACT = "exact"  # nothing lost, duplicated, reordered or torn, no open transaction, no new transactional id
    REFUSED = "refused"  # nothing wrong, and the pipeline refused to continue, with an error
    FAULT = "fault"  # a control run: the fault must show, or the attack proves nothing
    ANYTHING = "anything"  # another sink, shown next to Tailrace's


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    fault: str
    runs: int  # number of times the fault struck
    records: int  # input records of the batches or pipelines that it struck
    again: int = 0  # those of `records` that are in another row, too: two faults struck the same batch
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    torn: int = 0  # transactions that were visible in part, or whose marker does not match
    lingering: int = 0  # transactions that were still open 10 s after the end
    ids: int = 0  # transactional ids beyond one for each sink partition and the driver's
    refused: int = 0  # runs that ended with the promised refusal
    note: str = ""  # a few words in the table's last column
    native: bool = False  # Spark's own sink
    expect: Expect = Expect.EXACT
    promise: str = ""  # this and the next three are filled in by the campaign
    group: str = ""
    scenario: str = ""
    seconds: float = 0.0

    def plus(self, **counts: int) -> Result:
        """Add to the named counts."""
        return replace(self, **{name: getattr(self, name) + count for name, count in counts.items()})

    @property
    def wrong(self) -> int:
        """The number of findings that must never occur."""
        return self.lost + self.duplicated + self.reordered + self.torn + self.lingering + self.ids

    @property
    def as_expected(self) -> bool:
        """Whether the campaign may succeed with this result; a fault that never struck proves nothing."""
        if self.runs < 1:
            return False
        match self.expect:
            case Expect.EXACT:
                return self.wrong == 0
            case Expect.REFUSED:
                return self.wrong == 0 and self.refused == self.runs
            case Expect.FAULT:
                return self.wrong > 0
            case Expect.ANYTHING:
                return True


@dataclass
class Context:
    """The resources of a scenario; all but the Kafka are its own."""

    kafka: EmbeddedKafka
    folder: Path
    seed: int
    quick: bool
    say: Callable[[str], None]
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses."""
        return self.kafka.bootstrap_servers

    def topic(self, name: str, partitions: int = 1, **config: object) -> str:
        """Create a topic with a unique name; return the name."""
        return Topics(self.bootstrap)(name, partitions, **config)


@dataclass(frozen=True)
class Scenario:
    """A fault, or several that share a pipeline: `act` breaks things and returns a result for each fault."""

    name: str  # for ONLY=name
    group: str  # a part of the table: "Crash points", "Kills", "Network", "Brokers", "Zombies", "Change", "Time"
    promise: str  # anchor of the heading in docs/guarantees.md that it attacks: "exactly-once"
    act: Callable[[Context], Sequence[Result]]
    quick: bool = True  # whether QUICK=1 runs it (context.quick reduces its size)
    brokers: int = 1  # scenarios with equal brokers and settings share a Kafka; it must run when `act` returns
    settings: Mapping[str, str] = field(default_factory=dict)  # of the brokers
    length: int = 0  # longer scenarios start first, so that no lane is still busy with one at the end
    alone: bool = False  # runs on its own Kafka, because it leaves it broken

    def run(self, context: Context) -> list[Result]:
        """Act, and label each result with its promise, group and scenario."""
        return [replace(each, promise=self.promise, group=self.group, scenario=self.name) for each in self.act(context)]


def every() -> list[Scenario]:
    """Collect the scenarios of all modules, in the modules' order."""
    package = importlib.import_module("faults.scenarios")
    found: list[Scenario] = []
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name):
        found += importlib.import_module(f"faults.scenarios.{module.name}").SCENARIOS
    names = [each.name for each in found]
    if len(names) != len(set(names)):
        raise ValueError(f"two scenarios have the same name: {sorted(names)}")
    return found
