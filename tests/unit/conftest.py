"""Fixtures that the unit tests share: one Spark session, and a Hypothesis profile that does not depend on speed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from support import archive
from support.spark import local_spark

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Run a local Spark."""
    archive.use()
    session = local_spark()
    yield session
    session.stop()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder of the test's own, so that messages show `file.yaml`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
