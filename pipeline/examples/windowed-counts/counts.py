"""Counts each word per minute and language: a stateful function with a watermark."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def count(words: DataFrame, window: str, delay: str) -> DataFrame:
    """Return one row per window, language and word, once no more events of the window are expected."""
    counted = words.withWatermark("at", delay).groupBy(F.window("at", window).alias("window"), "lang", "word").count()
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    return counted.select(
        F.concat_ws("/", start, "lang", "word").alias("key"),
        start.alias("start"),
        "lang",
        "word",
        "count",
    )
