"""The rows from which the reading tasks start: one per task.

Spark estimates a small range at a few bytes, and then broadcasts the side of a join that reads the records: they would
be collected on the driver and joined in tasks of the other table. Rows of an RDD have no known size, which Spark takes
for enormous, so it always broadcasts the other table.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def one_row_per_task(spark: SparkSession, tasks: int) -> DataFrame:
    """Return a frame of the numbers 0 to `tasks` - 1, each in its own task; Spark recomputes it each time."""
    rows = spark.range(0, tasks, 1, tasks)._jdf
    # Passed on as they are: createDataFrame would unpack each row and pack it again, with code that each task compiles.
    found = spark._jsparkSession.internalCreateDataFrame(rows.queryExecution().toRdd(), rows.schema(), False)
    return DataFrame(found, spark)
