"""What Spark's reader is told."""

from __future__ import annotations

from tailrace.config import Pipeline
from tailrace.spark_stream.spark_source import reading


def pipeline(**source: object) -> Pipeline:
    """One that copies."""
    return Pipeline.model_validate(
        {"pipeline": "p", "source": {"topics": ["in"], **source}, "sink": {"topic": "out", "format": "raw"}}
    )


def test_a_fetch_does_not_wait_for_the_next_batch() -> None:
    """Where partitions are many and slow, half a second for each would be most of a batch (docs/decisions/0026)."""
    assert reading(pipeline())["kafka.fetch.max.wait.ms"] == "5"


def test_an_option_of_the_file_wins() -> None:
    """Also over what Tailrace has chosen."""
    assert reading(pipeline(options={"fetch.max.wait.ms": "50"}))["kafka.fetch.max.wait.ms"] == "50"


def test_nobody_reads_what_was_not_committed() -> None:
    """Unless the file says so."""
    assert reading(pipeline())["kafka.isolation.level"] == "read_committed"
