"""One tweet becomes one record for each of its hashtags; a tweet without hashtags becomes none."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def hashtags(tweets: DataFrame) -> DataFrame:
    """The hashtags of the tweets, in lower case, each with a key of its own."""
    exploded = tweets.select("id", "user", "created_at", F.posexplode("hashtags").alias("position", "hashtag"))
    return exploded.select(
        # The tweet and the place in it name an output for ever, so that anyone can count it.
        F.concat_ws("#", "id", "position").alias("key"),
        F.lower("hashtag").alias("tag"),
        F.col("id").alias("tweet_id"),
        "position",
        "user",
        "created_at",
    )
