"""What the integration tests share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from support import archive
from support.pipelines import QUIET, Bench
from support.threads import Line
from support.zookeeper import ZooKeeper
from tailrace.config import Pipeline, Sink, Source
from tailrace.spark_stream.checkpoint import prepare
from tailrace.startup.session import session as start
from tailrace.testing import Topics

# Modules whose tests share a fixture that takes long to make: they stay together in one process.
TOGETHER = {"any_input", "checkpoint_s3", "dashboards", "embedded", "network", "watching"}


class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out test by test, and the tests of some modules as one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return file if Path(file).stem.removeprefix("test_") in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Return the scheduler for `pytest -n`."""
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, so that no process is left working alone at the end."""
    items.sort(key=takes, reverse=True)


def takes(item: pytest.Item) -> float:
    """Return the seconds that a test takes by its mark; short ones have none."""
    mark = item.get_closest_marker("takes")
    return float(mark.args[0]) if mark is not None else 0.0


@pytest.fixture(scope="session", autouse=True)
def quick_starts() -> None:
    """Sessions of Spark, here and in processes below, start from an archive of classes if `make test` has made it."""
    archive.use()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: most of a short run's time would be Spark's start."""
    # The checkpoint is named for the jars that it brings: whatever a test needs must be there from the start.
    place = "s3a://tests/tests"
    plain = Pipeline(pipeline="tests", source=Source(topics=["in"]), sink=Sink(topic="out"), spark=QUIET)
    session = start(plain.model_copy(update={"checkpoint": place}))
    prepare(session, plain)
    yield session
    session.stop()


@pytest.fixture
def bench(tailrace_topics: Topics, spark: SparkSession, tmp_path: Path) -> Callable[..., Bench]:
    """Makes a pipeline's bench with topics of its own."""

    def make(partitions: int = 1, out: int = 1) -> Bench:
        name = f"p-{uuid.uuid4().hex[:8]}"
        return Bench(
            tailrace_topics,
            spark,
            tmp_path,
            name,
            tailrace_topics("in", partitions),
            tailrace_topics("out", out),
            partitions,
        )

    return make


@pytest.fixture
def line(tailrace_topics: Topics, tmp_path: Path) -> Callable[..., Line]:
    """Makes a pipeline without Spark, with topics of its own."""

    def make(partitions: int = 2) -> Line:
        name = f"l-{uuid.uuid4().hex[:8]}"
        return Line(
            tailrace_topics, tmp_path, name, tailrace_topics("in", partitions), tailrace_topics("out"), partitions
        )

    return make


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One ZooKeeper for all tests, which take nodes of their own."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
