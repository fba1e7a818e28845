"""What the unit tests share: one Spark session for all that need it, and no test that depends on the time it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from support.spark import local_spark

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark."""
    session = local_spark()
    yield session
    session.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder that relative names start from, so that messages show `file.yaml`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
