"""How many partitions the ledger needs, so far as the configuration tells: one for each sink partition of a batch.

A batch that no shuffle cuts is fitted to the ledger. Outputs behind a shuffle have the shuffle's number, and a stateful
pipeline's reading tasks have Spark's. Only Spark knows what a function shuffles, so with one this is a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config import Pipeline

SHUFFLE, SHUFFLED = "spark.sql.shuffle.partitions", "8"  # as a session of ours has it, which would import Spark


@dataclass(frozen=True)
class Needed:
    """Partitions that the ledger needs for certain, and those that a batch may need."""

    certain: int
    at_most: int


def needed(pipeline: Pipeline, partitions: int) -> Needed:
    """Return what a pipeline needs whose source topics have this many partitions."""
    from tailrace.stages.formats.known import source_kind  # imports Spark's classes, which --help should not wait for

    process, most = pipeline.process, pipeline.sink.partitions
    stateful = pipeline.checkpoint != "ledger"
    if process.partitions is None and not stateful:
        return Needed(1, 1)
    judges = bool(process.validate_) or source_kind(pipeline.source).may_reject
    shuffled = int(str(pipeline.spark.get(SHUFFLE, SHUFFLED)))
    tasks = max(1, partitions, pipeline.source.partitions or 1) if stateful else 1
    spread = process.partitions or 1
    outputs = spread if process.function is None else max(spread, shuffled, tasks)
    outputs = outputs if most is None else min(outputs, most)
    at_most = outputs + (tasks if judges else 0)
    return Needed(at_most if process.function is None and not stateful else 1, at_most)
