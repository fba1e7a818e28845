"""A plan for the ledger, without a pipeline that runs."""

from __future__ import annotations

import time

from tailrace.config import Pipeline
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import BatchId, Range
from tailrace.progress.positions import Positions
from tailrace.progress.stream_plan import BEFORE, Slice, StreamPlan, offsets_json


def plan_of(pipeline: Pipeline, batch: int, sinks: int = 2) -> StreamPlan:
    """Return a plan of a batch with this number of sink partitions."""
    slices = tuple(Slice(f"in-{number}:0-{batch + 1}") for number in range(sinks))
    return StreamPlan(pipeline.pipeline, "q", BatchId(batch), (Range("in", 0, 0, batch + 1),), slices, "v1\n{}\n{}")


def leave_stream_plan(pipeline: Pipeline, ends: Positions) -> None:
    """Leave in the ledger the plan of a first batch that Spark planned, as version 0.1 did: it reads to these ends."""
    ranges = tuple(Range(*place, 0, end) for place, end in sorted(ends.items()))
    slices = tuple(Slice(str(each)) for each in ranges)
    entry = "v1\n{}\n" + offsets_json(ends)
    plan = StreamPlan(pipeline.pipeline, "q", BatchId(0), ranges, slices, entry, at=time.time(), version=BEFORE)
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        ledger.markers()  # a new broker needs a while before it takes offsets
        ledger.settle(plan, ends)
