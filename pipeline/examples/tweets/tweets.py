"""Turns each tweet into one record per hashtag; a tweet without hashtags becomes none."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def hashtags(tweets: DataFrame) -> DataFrame:
    """Return the hashtags in lower case, each with a unique key."""
    exploded = tweets.select("id", "user", "created_at", F.posexplode("hashtags").alias("position", "hashtag"))
    return exploded.select(
        # The tweet and the position in it identify an output for good, so that anyone can count it.
        F.concat_ws("#", "id", "position").alias("key"),
        F.lower("hashtag").alias("tag"),
        F.col("id").alias("tweet_id"),
        "position",
        "user",
        "created_at",
    )
