"""A plan for the ledger, without a pipeline that runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from tailrace.config import Pipeline
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import BatchId, Range
from tailrace.progress.positions import Positions
from tailrace.progress.stream_plan import BEFORE, Slice, StreamPlan, offsets_json


def plan_of(pipeline: Pipeline, batch: int, sinks: int = 2) -> StreamPlan:
    """Return a plan of a batch with this number of sink partitions."""
    slices = tuple(Slice(f"in-{number}:0-{batch + 1}") for number in range(sinks))
    return StreamPlan(pipeline.pipeline, "q", BatchId(batch), (Range("in", 0, 0, batch + 1),), slices, "v1\n{}\n{}")


def stream_plan(pipeline: Pipeline, begins: Positions, moves: Positions, batch: int = 1) -> StreamPlan:
    """Return the plan of a batch that Spark planned, as version 0.1 wrote it; it reads what the moves span."""
    ranges = tuple(Range(*place, begins[place], end) for place, end in sorted(moves.items()))
    slices, entry = tuple(Slice(str(each)) for each in ranges), "v1\n{}\n" + offsets_json(begins | moves)
    return StreamPlan(pipeline.pipeline, "q", BatchId(batch), ranges, slices, entry, at=time.time(), version=BEFORE)


def leave_stream_plan(pipeline: Pipeline, ends: Positions, ids: Mapping[str, str] | None = None) -> None:
    """Leave in the ledger such a plan of the first batch, which is done and read up to these ends."""
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        ledger.markers()  # a new broker needs a while before it takes offsets
        ledger.settle(replace(stream_plan(pipeline, dict.fromkeys(ends, 0), ends, 0), topics=ids), ends)
