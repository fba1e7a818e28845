"""Fixtures and scheduling of the integration tests."""

from __future__ import annotations

import resource
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from support import archive, deadline
from support.pipelines import QUIET, Bench
from support.readers import Reading, request_for
from support.threads import Line
from support.zookeeper import ZooKeeper
from tailrace.config import Pipeline, Sink, Source
from tailrace.spark_stream.storage import prepare
from tailrace.startup.session import session as start
from tailrace.testing import Topics

# Modules whose tests share a slow fixture; they stay together in one process.
TOGETHER = {"any_input", "checkpoint_s3", "dashboards", "embedded", "network", "watching", "wheel"}

FILES = 16_384


class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Schedules single tests, and the tests of some modules as one unit."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return file if Path(file).stem.removeprefix("test_") in TOGETHER else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Return the scheduler for `pytest -n`."""
    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return Together(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let a run with a limit end in time, and tell each failure at once."""
    config.pluginmanager.register(deadline.Deadline(deadline.until()))
    if not hasattr(config, "workerinput"):  # or each process would tell them
        config.pluginmanager.register(deadline.Telling(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that must not be left come in time."""
    items[:] = deadline.in_order(items, deadline.until(), takes)


def takes(item: pytest.Item) -> float:
    """Return the seconds that a test takes according to its mark, which short ones lack."""
    mark = item.get_closest_marker("takes")
    return float(mark.args[0]) if mark is not None else 0.0


@pytest.fixture(scope="session", autouse=True)
def quick_starts() -> None:
    """Let Spark sessions, here and in child processes, start from a class archive if `make test` has created it."""
    archive.use()


@pytest.fixture(scope="session", autouse=True)
def files_enough() -> None:
    """Let each process open many files: the JVM keeps ended queries, and so their clients, until it needs memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Provide one session for all tests, since starting Spark would dominate a short run."""
    # The checkpoint is set for the jars that it adds: what any test needs must be there from the start.
    place = "s3a://tests/tests"
    plain = Pipeline(pipeline="tests", source=Source(topics=["in"]), sink=Sink(topic="out"), spark=QUIET)
    session = start(plain.model_copy(update={"checkpoint": place}))
    prepare(session, plain)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def known_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sample of the first records take its time: without it, a batch is smaller than its test says."""
    monkeypatch.setattr("tailrace.driver.record_size._PROBE_LIMIT", 10.0)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe the only broker at once that something is gone."""
    monkeypatch.setattr("tailrace.kafka.source.CERTAIN_AFTER", 1.0)


@pytest.fixture
def bench(tailrace_topics: Topics, spark: SparkSession, tmp_path: Path) -> Callable[..., Bench]:
    """Return a factory of benches, each a pipeline with its own topics."""

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
    """Return a factory of pipelines without Spark, each with its own topics."""

    def make(partitions: int = 2) -> Line:
        name = f"l-{uuid.uuid4().hex[:8]}"
        return Line(
            tailrace_topics, tmp_path, name, tailrace_topics("in", partitions), tailrace_topics("out"), partitions
        )

    return make


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Start one ZooKeeper for all tests, each of which uses its own nodes."""
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def make_reading(tailrace_topics: Topics) -> Iterator[Callable[..., Reading]]:
    """Return a factory of readers with what tests do to their topics; close them after the test."""
    made: list[Reading] = []
    servers = tailrace_topics.bootstrap_servers

    def reading(isolation: str = "read_committed", reset: bool = False, **others: Any) -> Reading:
        made.append(Reading(servers, request_for(servers, isolation, reset), **others))
        return made[-1]

    yield reading
    for each in made:
        each.reader.close()


@pytest.fixture
def reading(make_reading: Callable[..., Reading]) -> Reading:
    """Return one that reads committed records, and stops if offsets are lost."""
    return make_reading()
