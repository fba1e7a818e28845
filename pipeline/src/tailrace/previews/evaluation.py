"""Matching outputs with their sources, whichever engine runs the stages.

An engine processes records in parts, and each part's rows come out together. Records are processed twice: all in one
part, as in a batch, and each in a part of its own. If both give the same rows, each row's source is known. If not, the
function looks at several records at once, or gives other rows each time, and rows are not matched.

A record at which the function raises is found as the driver finds it (`tailrace.driver.faulty`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.config import OnError, Pipeline
from tailrace.driver.faultless import without
from tailrace.driver.faulty import Part, search
from tailrace.errors import FunctionFailed, QueryFailed
from tailrace.gateway.memory import moments
from tailrace.kafka.reader import Message
from tailrace.previews.model import Outcome, Preview, Row, by_source, outcome
from tailrace.progress.plan import Range
from tailrace.stages.arrow_rows import RECORD
from tailrace.stages.rules import UNDECODED, counts, tally

# Process the records with these numbers, in parts; return the rows of each part.
Process = Callable[[Sequence[Sequence[int]]], list[list[Row]]]

# Return the numbers of the rules that each of these records breaks; UNDECODED alone if it cannot be decoded.
Broken = Callable[[Sequence[int]], list[tuple[int, ...]]]

TOGETHER = (
    "the function gives other rows for all records together than for each alone, so outputs are not matched with their "
    "sources"
)


@dataclass(frozen=True)
class Engine:
    """What runs the stages, and why its rows have no known source; empty if they have."""

    process: Process
    broken: Broken
    unmatched: str = ""
    notes: tuple[str, ...] = ()


def evaluate(pipeline: Pipeline, records: Sequence[Message], origin: str, engine: Engine) -> Preview:
    """Process the records and match the rows with them."""
    apart = not engine.unmatched
    faults: dict[int, str] = {}
    good = list(range(len(records)))
    try:
        whole, alone = _processed(good, engine.process, apart=apart)
    except (FunctionFailed, QueryFailed):
        faults = _faults(len(records), engine.process)
        if not faults:  # no single record is at fault
            raise
        good = [number for number in good if number not in faults]
        whole, alone = _processed(good, engine.process, apart=apart)
    unmatched = engine.unmatched
    if apart and Counter(chain.from_iterable(alone.values())) != Counter(whole):
        unmatched, alone = TOGETHER, {}
    rules = pipeline.process.validate_
    broken = dict(zip(good, engine.broken(good), strict=True)) if rules and good else {}
    names = {
        number: tuple(list(rules)[rule] for rule in found if rule != UNDECODED) for number, found in broken.items()
    }
    outcomes = tuple(
        _faulty(record, faults[number], pipeline)
        if number in faults
        else replace(outcome(record, alone.get(number, ()), pipeline), broken=names.get(number, ()))
        for number, record in enumerate(records)
    )
    listed = pa.array(list(broken.values()), pa.list_(pa.int32()))
    counted = tuple(counts(rules, tally(listed, len(broken), len(rules))))
    notes = (*engine.notes, *_stopping(len(faults), pipeline))
    if not unmatched:
        return Preview(pipeline.pipeline, origin, outcomes, notes=notes, rules=counted)
    matched, others = by_source(outcomes, whole, pipeline)
    return Preview(pipeline.pipeline, origin, matched, unmatched, others, notes, counted)


def _processed(good: Sequence[int], process: Process, *, apart: bool) -> tuple[list[Row], dict[int, list[Row]]]:
    """Return the rows of all records together, and those of each alone."""
    if not good:
        return [], {}
    # In one call: with Spark, a second job would cost another plan.
    whole, *alone = process([good, *([number] for number in good if apart)])
    return whole, dict(zip(good, alone, strict=True)) if apart else {}


def _faults(count: int, process: Process) -> dict[int, str]:
    """Return the records at which the function raises, and what it raises."""

    def failing(parts: list[Part]) -> list[tuple[Part, str]]:
        failed = []
        for part in parts:
            try:
                process([[number for each in part for number in range(each.start, each.end)]])
            except (FunctionFailed, QueryFailed) as error:
                failed.append((part, error.what))
        return failed

    found = search((Range("", 0, 0, count),), failing, count)
    return {each.offset: each.why for each in found}


def _stopping(faults: int, pipeline: Pipeline) -> Iterator[str]:
    """Say that a batch of these records would not be delivered, if the pipeline rejects no more than some of them."""
    most = pipeline.process.max_errors
    if pipeline.process.on_error is OnError.REJECT and faults > most:
        yield f"in one batch they would stop the pipeline (TR-401): process.max_errors is {most}"


def _faulty(record: Message, why: str, pipeline: Pipeline) -> Outcome:
    """Return the outcome of a record at which the function raises."""
    if pipeline.process.on_error is OnError.STOP:
        return Outcome(record, raised=why)
    aside: list[pa.RecordBatch] = []
    faults = {(record.topic, record.partition): {record.offset: why}}
    for _ in without((each for each in [batch([record])]), faults, tuple(RECORD.names), aside.append):
        pass
    return outcome(record, chain.from_iterable(map(rows, aside)), pipeline)


def batch(records: Sequence[Message]) -> pa.RecordBatch:
    """Return records as a reader hands them over."""
    columns: dict[str, list[Any]] = {
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "topic": [each.topic for each in records],
        "partition": [each.partition for each in records],
        "offset": [each.offset for each in records],
        "headers": [[{"key": name, "value": value} for name, value in each.headers] or None for each in records],
    }
    times = moments(np.array([each.timestamp for each in records], np.int64))
    arrays = [times if each.name == "timestamp" else pa.array(columns[each.name], each.type) for each in RECORD]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


def rows(made: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch in the gateway's schema."""
    return [Row.of(each) for each in made.to_pylist()]
