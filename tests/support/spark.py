"""A small local Spark for tests, and records as Spark's Kafka source returns them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.gateway.daemon import ENV
from tailrace.stages.rows import HEADERS
from tailrace.startup.session import _LOADED

_TESTS = str(Path(__file__).parents[1])
AT = datetime(2026, 3, 1, 12, 30, 15, 123000, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)

RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)


def local_spark() -> SparkSession:
    """Return a session with two threads, as small as possible."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # As in Tailrace's own session: they save most of the CPU that small frames cost.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "support.spark_daemon",
        f"spark.executorEnv.{ENV}": _LOADED,
    }
    # Spark's workers would otherwise run whatever python3 is on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def records(
    spark: SparkSession,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
) -> DataFrame:
    """Return records with these values, at the offsets 0, 1, … of partition 3 of the topic `in`."""
    keys = keys if keys is not None else [f"k{number}".encode() for number in range(len(values))]
    rows = [
        (key, value, "in", 3, offset, AT, 0, headers)
        for offset, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    return spark.createDataFrame(rows, RECORD)


def in_order(decoded: DataFrame) -> list[Row]:
    """Return the rows in the order of their records' offsets."""
    return sorted(decoded.collect(), key=lambda row: int(row["kafka"]["offset"]))


def headers_of(row: Row | Mapping[str, Any]) -> dict[str, bytes | None]:
    """Return a row's headers by name."""
    return {each["key"]: each["value"] for each in row["headers"] or []}
