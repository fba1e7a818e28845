"""A plan for the ledger, without a pipeline that runs."""

from __future__ import annotations

from tailrace.config import Pipeline
from tailrace.progress.plan import BatchId, Range
from tailrace.progress.stream_plan import Slice, StreamPlan


def plan_of(pipeline: Pipeline, batch: int, sinks: int = 2) -> StreamPlan:
    """Return a plan of a batch with this number of sink partitions."""
    slices = tuple(Slice(f"in-{number}:0-{batch + 1}") for number in range(sinks))
    return StreamPlan(pipeline.pipeline, "q", BatchId(batch), (Range("in", 0, 0, batch + 1),), slices, "v1\n{}\n{}")
