"""Each event goes out with its length and its number of words, to the topic for brief or for long ones."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def enrich(events: DataFrame, brief: int) -> DataFrame:
    """The events with their counts; those of at most `brief` words go to `rich-events.brief`, others to `.long`."""
    words = F.size(F.split(F.trim("content"), r"\s+"))
    return events.select(
        F.col("id").cast("string").alias("key"),
        F.when(words <= brief, "rich-events.brief").otherwise("rich-events.long").alias("topic"),
        "id",
        "content",
        "at",
        F.length("content").alias("length"),
        words.alias("words"),
    )
