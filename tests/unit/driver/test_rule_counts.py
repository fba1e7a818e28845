"""Counting the rules of a batch that is not planned yet: with the time and the tables of that batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.config import Pipeline
from tailrace.driver import rule_counts
from tailrace.driver.rule_counts import RuleCounter
from tailrace.progress.plan import BatchId, Plan, Range
from tailrace.stages.assembly import Assembly

CONDITION = "at <= current_timestamp()"


def test_condition_on_the_time_is_counted_with_the_time_of_each_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that of the first, a pipeline that has run for an hour would stop at good records, or deliver bad ones."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "p",
            "source": {"topics": ["in"], "format": "json", "schema": "at timestamp"},
            "process": {"validate": {"new": {"condition": CONDITION, "severity": "stop", "ratio": 0.5}}},
            "sink": {"topic": "out", "format": "json"},
        }
    )
    planned: list[str] = []

    def kept(frame: DataFrame) -> Any:
        planned.append(re.sub(r"#\d+", "", frame._jdf.queryExecution().optimizedPlan().toString()))

    monkeypatch.setattr(rule_counts, "kept_job", kept)
    monkeypatch.setattr(rule_counts, "answers", lambda job: [])
    counter = RuleCounter(spark, Assembly(pipeline, None, tmp_path, spark), "run")
    for batch in range(2):
        counter.count(Plan("p", BatchId(batch), "out", {}, ((Range("in", 0, 0, 5),),), 1, {("in", 0): 5}))
    first, second = planned
    assert "at" in first
    assert first != second
