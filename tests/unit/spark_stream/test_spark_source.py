"""The options of Spark's Kafka source."""

from __future__ import annotations

from tailrace.config import Pipeline
from tailrace.progress.plan import Range
from tailrace.spark_stream.spark_source import joined, reading


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


def test_what_a_batch_reads_is_the_same_however_its_tasks_share_it() -> None:
    """The option minPartitions may have changed, or a query may read a topic twice."""
    whole = (Range("in", 0, 0, 10), Range("in", 1, 5, 9))
    assert joined([Range("in", 1, 5, 9), Range("in", 0, 4, 10), Range("in", 0, 0, 4), Range("in", 0, 0, 10)]) == whole


def test_ranges_with_a_gap_between_them_stay_apart() -> None:
    """Nobody has read what is in between."""
    apart = (Range("in", 0, 0, 4), Range("in", 0, 5, 10), Range("other", 0, 4, 5))
    assert joined(reversed(apart)) == apart
