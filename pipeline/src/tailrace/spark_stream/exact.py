"""The settings of a session without which a batch that is read again would be cut in another way."""

from __future__ import annotations

from pyspark.sql import SparkSession

EXACT = {
    "spark.sql.adaptive.enabled": "false",  # no decision may depend on sizes
    "spark.sql.streaming.stopTimeout": "60000",
    # A filter that is never true must not remove the reading tasks: rejected records and markers come from them.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("PruneFilters", "PropagateEmptyRelation")
    ),
}


def make_exact(spark: SparkSession) -> None:
    """Set them, whatever the session was given; a query has those of the moment at which it starts."""
    for name, value in EXACT.items():
        spark.conf.set(name, value)
