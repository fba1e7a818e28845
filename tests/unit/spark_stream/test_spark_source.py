"""The options of Spark's Kafka source."""

from __future__ import annotations

from tailrace.config import Pipeline
from tailrace.spark_stream.spark_source import reading


def pipeline(**source: object) -> Pipeline:
    """Return a pipeline that copies."""
    return Pipeline.model_validate(
        {"pipeline": "p", "source": {"topics": ["in"], **source}, "sink": {"topic": "out", "format": "raw"}}
    )


def test_a_fetch_does_not_wait_for_the_next_batch() -> None:
    """With many slow partitions, half a second for each would be most of a batch (docs/decisions/0026)."""
    assert reading(pipeline())["kafka.fetch.max.wait.ms"] == "5"


def test_an_option_in_the_file_takes_precedence() -> None:
    """It also overrides Tailrace's own choices."""
    assert reading(pipeline(options={"fetch.max.wait.ms": "50"}))["kafka.fetch.max.wait.ms"] == "50"


def test_uncommitted_records_are_not_read() -> None:
    """The file may change this."""
    assert reading(pipeline())["kafka.isolation.level"] == "read_committed"
