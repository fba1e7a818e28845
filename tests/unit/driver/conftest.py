"""The records' frame and another table, which tests of frames share."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.frames import reading


@pytest.fixture(scope="module")
def leaf(spark: SparkSession) -> DataFrame:
    """Return the frame that reads."""
    return reading(spark)


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a table in files, with a name for each key."""
    place = str(tmp_path_factory.mktemp("table") / "names")
    spark.range(5).selectExpr("id AS k", "concat('n', id) AS name").write.parquet(place)
    return spark.read.parquet(place)
