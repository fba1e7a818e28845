"""Unneeded imports: the configuration and the operator work without Spark and Kafka."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "py4j", "confluent_kafka", "pandas")
LIMIT = 60.0


@pytest.mark.parametrize(
    "module",
    [
        "tailrace",
        "tailrace.config",
        "tailrace.config.file",
        "tailrace.errors",
        "tailrace.testing",
        "tailrace.cli.main",
        "tailrace.cli.explain",
        "tailrace_operator.crd",
    ],
)
def test_import_brings_neither_spark_nor_kafka(module: str) -> None:
    """A fresh process is used, in which nothing is imported yet."""
    code = f"import sys, {module}; sys.stdout.write(' '.join(each for each in {HEAVY!r} if each in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert result.stdout == ""
