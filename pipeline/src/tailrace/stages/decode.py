"""Decode: turn Kafka's records into rows for the user's function.

Every record becomes one row, whatever its bytes: with its fields, or with a reason and the original bytes. How a value
is read is the format's affair (`tailrace.stages.formats`).
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace.config import Source
from tailrace.stages.formats.known import source_format
from tailrace.stages.rows import DETAIL, KAFKA, REASON, VALUE

RECORD = ("key", "topic", "partition", "offset", "timestamp", "headers")


def decode(records: DataFrame, source: Source, folder: Path) -> DataFrame:
    """Return decoded fields, the struct `kafka` and the hidden columns of rows.py; paths are relative to `folder`."""
    prepared = records.select(F.struct(*RECORD).alias(KAFKA), F.col("value").alias(VALUE))
    return source_format(source, folder, jvm=True).frame(prepared, VALUE, (REASON, DETAIL))
