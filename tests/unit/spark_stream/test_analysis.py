"""Which operators of a stream are known to shuffle its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tailrace.spark_stream.analysis import check_shuffles

Tables = Iterator[pd.DataFrame]


class Nothing(StatefulProcessor):
    """Keep no state, and return no rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ignore the handle."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Tables:  # noqa: N802, N803 - PySpark's names
        """Read the rows."""
        yield from rows

    def close(self) -> None:
        """Do nothing."""


def with_state(rows: DataFrame) -> DataFrame:
    """Keep state by group, in the older way."""

    def nothing(key: Any, tables: Tables, state: Any) -> Tables:
        yield from tables

    return rows.groupBy("value").applyInPandasWithState(nothing, "value long", "n long", "append", "NoTimeout")


def with_processor(rows: DataFrame) -> DataFrame:
    """Keep state by group, in the newer way."""
    grouped = rows.groupBy("value")
    return grouped.transformWithStateInPandas(Nothing(), "value long", "append", "none")


def late(rows: DataFrame) -> DataFrame:
    """Give the rows a watermark."""
    return rows.withWatermark("timestamp", "1 minute")


def same(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a group as it is."""
    return rows


SHUFFLED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda rows: rows.groupBy("value").count(),
    "distinct": lambda rows: rows.distinct(),
    "deduplicate": lambda rows: rows.dropDuplicates(["value"]),
    "deduplicate within watermark": lambda rows: late(rows).dropDuplicatesWithinWatermark(["value"]),
    "groups": lambda rows: rows.groupBy("value").applyInPandas(same, rows.schema),
    "groups in Arrow": lambda rows: rows.groupBy("value").applyInArrow(lambda table: table, rows.schema),
    "state by group": with_state,
    "state by key": with_processor,
    "limit": lambda rows: rows.limit(5),
    "repartition": lambda rows: rows.repartition(2, "value"),
}
LEFT: dict[str, Callable[[DataFrame], DataFrame]] = {
    "select": lambda rows: rows.select(F.col("value") + 1),
    "filter": lambda rows: rows.filter("value > 1"),
    "watermark": late,
    "map in pandas": lambda rows: rows.mapInPandas(lambda tables: tables, rows.schema),
}


@pytest.mark.parametrize("name", [*SHUFFLED, *LEFT])
def test_each_operator_that_spark_plans_with_an_exchange_counts_as_a_shuffle(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One that is not known would let code change that decides what a sink partition gets."""
    stream = spark.readStream.format("rate").load()
    rows = (SHUFFLED | LEFT)[name](stream)
    rows.explain()
    planned = "Exchange" in capsys.readouterr().out
    assert planned == (name in SHUFFLED)
    assert (check_shuffles(rows) > 0) == planned
