"""Which settings of a session are compared before a partly delivered batch behind a shuffle is continued."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tailrace.stages.session_settings import decides, deciding, of_session

ZONE, ANSI, PARSER = "spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.legacy.timeParserPolicy"


@pytest.mark.parametrize("name", [ZONE, ANSI, PARSER, "spark.sql.caseSensitive", "spark.sql.mapKeyDedupPolicy"])
def test_setting_that_changes_what_an_expression_gives_decides(name: str) -> None:
    """A key computed from it would move a row to another sink partition."""
    assert decides(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.executor.memory",
        "spark.sql.adaptive.coalescePartitions.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.catalog.lake.token",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.minBatchesToRetain",
        "spark.sql.ui.retainedExecutions",
        "spark.sql.warehouse.dir",
    ],
)
def test_setting_that_decides_only_how_fast_or_where_does_not_decide(name: str) -> None:
    """A deploy that tunes a pipeline may continue an open batch."""
    assert not decides(name)


def test_setting_at_its_default_counts_as_not_set() -> None:
    """Taking out of the file what repeats a default changes nothing."""
    given = {PARSER: "EXCEPTION", "spark.sql.caseSensitive": "true", ZONE: "UTC"}
    found = deciding(given, {PARSER: "EXCEPTION", "spark.sql.caseSensitive": "false", ZONE: "UTC"})
    assert found == {"spark.sql.caseSensitive": "true", ZONE: "UTC"}


def test_settings_are_those_that_the_session_has_now(spark: SparkSession) -> None:
    """A session that is passed in may have others than the file, and a function may set some."""
    before = of_session(spark)
    assert {ZONE, ANSI} <= before.keys()
    spark.conf.set(PARSER, "LEGACY")
    spark.conf.set("spark.sql.caseSensitive", "false")  # its default
    try:
        assert of_session(spark) == before | {PARSER: "LEGACY"}
    finally:
        spark.conf.unset(PARSER)
        spark.conf.unset("spark.sql.caseSensitive")
