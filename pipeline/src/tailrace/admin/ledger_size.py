"""How many partitions the ledger needs, so far as the configuration tells: one for each sink partition of a batch.

A batch that no shuffle cuts is fitted to the ledger. Outputs behind a shuffle have the shuffle's number, and a stateful
pipeline's reading tasks have Spark's. What a function does is known only to Spark, so a start may still refuse more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.config import Pipeline

SHUFFLE, SHUFFLED = "spark.sql.shuffle.partitions", "8"  # as a session of ours has it, which would import Spark


@dataclass(frozen=True)
class Needed:
    """Partitions that the ledger needs for every batch that holds records, and for one that reads all partitions."""

    always: int
    at_most: int


def needed(pipeline: Pipeline, partitions: int) -> Needed:
    """Return what a pipeline needs whose source topics have this many partitions."""
    from tailrace.stages.formats.known import source_kind  # imports Spark's classes, which --help should not wait for

    process, most = pipeline.process, pipeline.sink.partitions
    stateful = pipeline.checkpoint != "ledger"
    if process.partitions is None and not stateful:
        return Needed(1, 1)
    shuffled = process.partitions or int(str(pipeline.spark.get(SHUFFLE, SHUFFLED)))
    outputs = shuffled if most is None else min(shuffled, most)
    if not (process.validate_ or source_kind(pipeline.source).may_reject):
        return Needed(outputs, outputs)
    if not stateful:
        return Needed(outputs + 1, outputs + 1)
    return Needed(outputs + 1, outputs + max(1, partitions, pipeline.source.partitions or 1))
