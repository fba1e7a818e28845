"""What the unit tests share: one Spark session for all that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from support.spark import local_spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark."""
    session = local_spark()
    yield session
    session.stop()
