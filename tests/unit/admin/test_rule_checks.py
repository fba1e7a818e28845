"""The doctor's check of the rules: they are loaded as a start would, without Spark and without records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.admin.checks import Check
from tailrace.admin.code_checks import code
from tailrace.config import Pipeline

ARROW = "def rows(batches):\n    yield from batches\n"


def checked(folder: Path, rules: dict[str, Any], **process: Any) -> Check:
    """Return the check of the rules of a pipeline."""
    (folder / "tailrace_test_checked.py").write_text(ARROW)
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "totals",
            "source": {"topics": ["orders"], "format": "json", "schema": "n INT, customer STRUCT<name: STRING>"},
            "process": {"validate": rules, **process},
            "sink": {"topic": "totals", "format": "json"},
        }
    )
    (found,) = [each for each in code(pipeline, folder) if each.name == "rules"]
    return found


def test_rules_are_listed_by_severity(tmp_path: Path) -> None:
    """A condition that only Spark can read is left to Spark."""
    rules = {"a": "n > 0", "b": {"condition": "upper(absent) = 'X'", "severity": "warn"}, "c": "kafka.partition = 0"}
    assert "2 reject, 1 warn" in str(checked(tmp_path, rules))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("m > 0", "m is not a field; the fields are n, customer, kafka"),
        ("customer.nam IS NOT NULL", "customer.nam: nam is not a field; the fields are name"),
        ("kafka.offest > 0", "offest is not a field"),
    ],
)
def test_unknown_column_is_named(tmp_path: Path, condition: str, words: str) -> None:
    """Together with the rule, before anything runs."""
    found = str(checked(tmp_path, {"fine": "n > 0", "wrong": condition}))
    assert "process.validate.wrong" in found
    assert words in found


def test_condition_that_needs_spark_is_refused_on_arrow_batches(tmp_path: Path) -> None:
    """A start would refuse it too."""
    found = str(checked(tmp_path, {"wrong": "upper(customer.name) = 'X'"}, arrow="tailrace_test_checked.py:rows"))
    assert "upper() is evaluated by Spark only" in found
