"""Reports to the driver from tasks that cannot return rows, because other tasks follow them."""

from __future__ import annotations

from typing import Any

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession


class _Listed(AccumulatorParam[list[Any]]):
    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - PySpark's name
        value1.extend(value2)
        return value1


def reports(spark: SparkSession) -> Accumulator[list[Any]]:
    """Return an empty accumulator of lists."""
    return spark.sparkContext.accumulator([], _Listed())
