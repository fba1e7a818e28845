"""Rules in a preview: which records break which rule, and the counts, with Spark and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import tailrace
from tailrace.cli.main import app
from tailrace.config import Pipeline
from tailrace.previews.model import Preview

UNCHANGED = """
import pyarrow as pa

def on_rows(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column("n"), batch.column("price")], names=["n", "price"])

def on_frame(frame):
    return frame.select("n", "price")
"""
RECORDS = [{"n": 1, "price": 2.5}, {"n": 2, "price": 50}, {"n": 3}, {"n": 0, "price": 11}, {"n": -1}]
PIPELINE: dict[str, Any] = {
    "pipeline": "totals",
    "source": {"topics": ["orders"], "format": "json", "schema": "n INT, price DOUBLE"},
    "sink": {"topic": "totals", "format": "json"},
}
RULES: dict[str, Any] = {
    "priced": {"condition": "price IS NOT NULL", "severity": "stop", "ratio": 0.1, "minimum": 2},
    "cheap": {"condition": "price < 10", "severity": "warn"},
    "counted": "n > 0",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a function and some records."""
    (tmp_path / "tailrace_test_ruled.py").write_text(UNCHANGED)
    lines = [json.dumps(each) for each in RECORDS] + ["nonsense"]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    return tmp_path


def check(found: Preview) -> None:
    """Check what the rules have made of the records."""
    assert [each.broken for each in found.outcomes] == [
        (),
        ("cheap",),
        ("priced",),
        ("cheap", "counted"),
        ("priced",),
        (),
    ]
    assert [(each.name, each.checked, each.broken, each.stops) for each in found.rules] == [
        ("priced", 5, 2, True),
        ("cheap", 3, 2, False),
        ("counted", 3, 1, False),
    ]
    assert [len(each.written) for each in found.outcomes] == [1, 1, 0, 0, 0, 0]
    assert [each.reason for _, each in found.all_rejected] == ["priced", "counted", "priced", "not json"]


def test_preview_without_a_jvm_shows_broken_rules(folder: Path) -> None:
    """Each record has its rules, also those that only warn."""
    process = {"arrow": "tailrace_test_ruled.py:on_rows", "validate": RULES}
    pipeline = Pipeline.model_validate({**PIPELINE, "process": process})
    check(tailrace.preview(pipeline, folder=folder, start=folder / "records.jsonl"))


def test_preview_with_spark_shows_the_same(folder: Path, spark: SparkSession) -> None:
    """The conditions are evaluated elsewhere, with the same result."""
    process = {"function": "tailrace_test_ruled.py:on_frame", "validate": RULES}
    pipeline = Pipeline.model_validate({**PIPELINE, "process": process})
    check(tailrace.preview(pipeline, folder=folder, start=folder / "records.jsonl", spark=spark))


def test_preview_leaves_the_spark_session_of_a_notebook_running_and_unchanged(
    folder: Path, spark: SparkSession
) -> None:
    """The preview has the settings of a run, in a session of its own on the same Spark."""
    process = {"function": "tailrace_test_ruled.py:on_frame", "validate": RULES}
    pipeline = Pipeline.model_validate({**PIPELINE, "process": process, "spark": {"spark.sql.ansi.enabled": "false"}})
    spark.createDataFrame([], "n INT")  # as any cell of a notebook makes its session the active one
    names = ("spark.sql.shuffle.partitions", "spark.sql.streaming.stopTimeout", "spark.sql.ansi.enabled")
    before = [spark.conf.get(name) for name in names]
    check(tailrace.preview(pipeline, folder=folder, start=folder / "records.jsonl"))
    assert [spark.conf.get(name) for name in names] == before
    assert spark.range(3).count() == 3
    active = SparkSession.getActiveSession()
    assert active is not None
    assert [active.conf.get(name) for name in names] == before


def test_table_of_a_preview_names_rules_and_counts(folder: Path) -> None:
    """A person sees which rule warns, and that one would stop the pipeline; a program gets the same."""
    process = {"arrow": "tailrace_test_ruled.py:on_rows", "validate": RULES}
    (folder / "totals.yaml").write_text(json.dumps({**PIPELINE, "process": process}))
    words = ["preview", str(folder / "totals.yaml"), "--from", str(folder / "records.jsonl")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 1
    table = " ".join(shown.output.split())
    assert "warned by" in table
    assert "cheap warn 3 2 66.7%" in table
    assert "the rule 'priced' would stop the pipeline" in table
    found = json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)
    assert found["rules"][0] == {"rule": "priced", "severity": "stop", "checked": 5, "broken": 2}
    assert found["records"][3]["broken"] == ["cheap", "counted"]
