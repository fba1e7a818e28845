"""Finishing a batch whose rejected records are committed by the tasks that read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.plans import stream_plan
from tailrace import errors
from tailrace.config import Pipeline, Sink, Source
from tailrace.progress.plan import Range
from tailrace.progress.stream_plan import BEFORE, VERSION
from tailrace.spark_stream.judging import check_reads


@pytest.mark.parametrize(
    ("version", "then"),
    [(BEFORE, "finish the batch with version 0.1"), (VERSION, "start with the settings of the last run once")],
)
def test_batch_with_other_reading_tasks_is_refused_with_advice_that_works(version: int, then: str) -> None:
    """Version 0.1 had no sink partitions for rejected records, so that no settings of this one fit its batch."""
    pipeline = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))
    plan = replace(stream_plan(pipeline, {("in", 0): 0}, {("in", 0): 4}), version=version)
    with pytest.raises(errors.CutChanged, match="would now have 1") as refused:
        check_reads(plan, (Range("in", 0, 0, 4),))
    assert then in refused.value.then
    check_reads(plan, ())
