"""The engine of a preview without a JVM: the stages on Arrow batches, in this process.

It serves each pipeline with an Arrow function or without a function, and answers in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from tailrace.config import Pipeline
from tailrace.driver import arrow_rows
from tailrace.kafka.reader import Message
from tailrace.previews.evaluation import Engine, batch, rows
from tailrace.previews.model import Row
from tailrace.stages.arrow_stages import ArrowSpec, ArrowStages
from tailrace.stages.formats.known import refuse_edited
from tailrace.stages.rules import UNDECODED


def engine(pipeline: Pipeline, folder: Path, records: Sequence[Message]) -> Engine:
    """Load the function and the schemas; raise what a start of the pipeline would raise."""
    refuse_edited(pipeline, folder)
    spec = ArrowSpec.of(pipeline, folder)
    stages = ArrowStages(spec)

    def process(parts: Sequence[Sequence[int]]) -> list[list[Row]]:
        return [of_part([records[number] for number in part]) for part in parts]

    def of_part(chosen: Sequence[Message]) -> list[Row]:
        made = arrow_rows.rows(stages, iter([batch(chosen).select(spec.columns)]), lambda judged: None)
        return list(chain.from_iterable(map(rows, made)))

    def broken(chosen: Sequence[int]) -> list[tuple[int, ...]]:
        judged = [stages.judge(batch([records[number]]).select(spec.columns))[2] for number in chosen]
        return [
            tuple(rule for rule, number in enumerate(found[1:]) if number) if found[0] else (UNDECODED,)
            for found in judged
        ]

    return Engine(process, broken)
