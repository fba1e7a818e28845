"""The engine protocol, which the loop needs to run a batch: deliver a plan, and report what was written.

Spark is one implementation (`spark_engine`). The other (`thread_engine`) runs the stages that need no Spark in threads,
so that the protocol can be tested against a real Kafka in a second instead of a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tailrace import errors
from tailrace.driver.column_names import renumbered
from tailrace.gateway import Written
from tailrace.progress.cuts import same_cut
from tailrace.progress.plan import Place, Plan, Range, SinkPartition
from tailrace.stages.rules import Judged

# What a record may be the cause of. Lost offsets or brokers that are away say nothing of the function.
BLAMABLE = (errors.FunctionFailed, errors.QueryFailed)
Faults = Mapping[Place, Mapping[int, str]]  # offsets of records at which the function raises, and what it raised
NO_FAULTS: Faults = {}
Parts = frozenset[SinkPartition]
WAYS = 8  # pieces of a part that failed, which are tried at the same time


@dataclass(frozen=True)
class Cut:
    """How an engine cuts a batch into sink partitions."""

    shuffles: bool = False
    outputs: int | None = None  # behind a shuffle: the number of sink partitions for outputs
    how: tuple[str, ...] = ()  # the shuffles, as Spark partitions their rows
    judges: bool = False  # behind a shuffle: reading tasks commit their rejected records themselves

    def fits(self, plan: Plan) -> bool:
        """Return whether it cuts a batch as the plan says."""
        outputs = self.outputs if self.shuffles else len(plan.parts)
        same = (self.shuffles, self.judges, outputs) == (plan.shuffles, plan.judges, plan.outputs)
        return same and same_cut(renumbered(plan.cut), renumbered(self.how))


def already(plan: Plan) -> dict[SinkPartition, Written]:
    """Return the answers of the sink partitions for which no task runs: their markers proved that they are written."""
    return {number: Written(number, skipped=True) for number in plan.delivered}


class Engine(Protocol):
    """Runs batches."""

    @property
    def slots(self) -> int:
        """The number of tasks that run at the same time."""

    @property
    def cut(self) -> Cut:
        """How batches are cut; fixed for a run."""

    def fits(self, plan: Plan) -> bool:
        """Return whether the engine can deliver a batch that is cut as the plan says."""

    @property
    def planning(self) -> tuple[str, tuple[str, ...]]:
        """Whether the frame is planned once or for each batch, and the reasons."""

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """Deliver a batch and return what each sink partition has written.

        `owners` wrote each sink partition last. Ranges of the topics in `gone` no longer exist, and are not read.
        Records in `faults` are rejected without asking the function. The start has read a marker of the sink partitions
        in `seen`, which are not written if it is gone. No task runs for the sink partitions that the plan has as
        delivered: it would call the function without records.
        """

    def judge(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """Apply the rules to the records of a batch that is not planned yet, and write nothing; return the counts."""

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """Process these ranges of a batch and write nothing; return why that fails, if it does.

        What no record is the cause of is raised. Several threads may do so at once, each in a lane of its own.
        """

    @property
    def observed(self) -> Mapping[str, Mapping[str, float]]:
        """What the function observed in the last batch, by name."""

    def cancel(self) -> None:
        """Give up the batch in progress."""
