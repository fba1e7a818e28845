"""A driver outlasts brokers that are away: in one process, it starts over from the ledger, and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import yaml
from pyspark.sql import SparkSession

from support.pipelines import QUIET, as_json, events_of
from support.stopping import paused
from support.threads import Line
from tailrace import errors
from tailrace.config import Kafka, Pipeline
from tailrace.demo.driver import Driver
from tailrace.demo.feed import create_topics
from tailrace.driver import recovery
from tailrace.driver.context import Context, Unwatched
from tailrace.kafka.cluster import Cluster
from tailrace.progress import ledger
from tailrace.progress.ledger import Ledger
from tailrace.startup.patience import Patience
from tailrace.startup.run import Stop, _outlast, run
from tailrace.status.events import ignored
from tailrace.testing import Record, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Start a broker that can be killed."""
    with EmbeddedKafka(EmbeddedOptions(brokers=1)) as running:
        create_topics(running.bootstrap_servers, ["orders", "copies"], 2)
        yield running


def all_ended(servers: str) -> bool:
    """Return whether no transaction is open, or about to end, in any partition of the broker."""
    cluster = Cluster(Kafka(bootstrap_servers=servers))
    places = [(topic, number) for topic, count in cluster.topics().items() for number in range(count)]
    return cluster.latest(places, committed=True) == cluster.latest(places)


@pytest.mark.takes(60)
def test_driver_starts_over_when_its_broker_is_back(
    kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was away for longer than a plan may take ended the driver."""
    monkeypatch.setattr(ledger, "_OFFSETS_LIMIT", 2.0)
    monkeypatch.setattr(ledger, "_COMMIT_LIMIT", 3.0)
    servers, events, stop = kafka.bootstrap_servers, list[dict[str, Any]](), Stop()
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "patient",
            "kafka": {"bootstrap.servers": servers, "patience": 200},
            "source": {"topics": ["orders"]},
            "sink": {"topic": "copies", "format": "raw"},
            "ledger": {"topic": "ledger", "partitions": 8},
            "batch": {"max_records": 50, "target": 0},
            "metrics": {"enabled": False},
            "spark": QUIET,
        }
    )
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            run(pipeline, tmp_path, emit=as_json(events.append), stop=stop, spark=spark)
        except BaseException as error:
            failed.append(error)

    def written() -> int:
        return sum(each["in"] for each in events_of(list(events), "written"))

    write = Ledger.write

    def strike(own: Ledger, *plan: Any) -> None:
        # A broker that is killed while it ends a transaction may lose that end (KAFKA-20734).
        if written() >= 200 and not struck.is_set():
            wait_until(lambda: all_ended(servers), "all transactions to end", 60)
            kafka.brokers[0].kill()
            struck.set()
        write(own, *plan)

    monkeypatch.setattr(Ledger, "write", strike)
    struck = threading.Event()
    values: list[bytes | None] = [b"%05d" % number for number in range(4000)]
    produce(servers, "orders", [Record(value) for value in values[:2000]])
    driver = threading.Thread(target=drive)
    driver.start()
    try:
        wait_until(lambda: struck.is_set() or bool(failed), "some batches", 120)
        wait_until(lambda: bool(events_of(list(events), "away")) or bool(failed), "the driver to notice", 60)
        starts = len(events_of(list(events), "started"))
        # Long enough for the plan in progress to fail: only that has to be started over.
        threading.Event().wait(8)
        kafka.brokers[0].start()
        wait_until(lambda: bool(events_of(list(events), "back")) or bool(failed), "the driver to notice again", 60)
        produce(servers, "orders", [Record(value) for value in values[2000:]])
        wait_until(lambda: bool(events_of(list(events), "idle")) or bool(failed), "all to be delivered", 120)
    finally:
        stop("the test is over")
        driver.join(60)
    assert failed == []
    assert starts == 1
    assert sorted(each.value or b"" for each in consume(servers, "copies")) == values


FIRST = "def first(frame):\n    return frame.dropDuplicates(['value'])\n"


@pytest.mark.takes(88)
def test_driver_without_its_broker_shows_no_java_traces(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Spark logs the stack of a query that fails; what the driver says of the broker is enough."""
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "pipeline.yaml").write_text(
        yaml.safe_dump(
            {
                "pipeline": "quiet",
                "kafka": {"bootstrap.servers": kafka.bootstrap_servers, "patience": 400},
                "source": {"topics": ["orders"]},
                "process": {"function": "first.py:first"},
                "sink": {"topic": "copies", "format": "raw"},
                "checkpoint": str(tmp_path / "state"),
                "ledger": {"topic": "ledger", "partitions": 8},
                "batch": {"max_records": 50, "target": 0},
                "metrics": {"enabled": False},
                "spark": QUIET,
            }
        )
    )
    produce(kafka.bootstrap_servers, "orders", [Record(b"%05d" % number) for number in range(5000)])
    command = ["-m", "tailrace.cli.main", "run", str(tmp_path / "pipeline.yaml"), "--output", "json"]
    driver = Driver(command, {"PYTHONUNBUFFERED": "1"}, tmp_path)

    def hears(name: str) -> bool:
        heard = driver.next(0.1)
        return driver.code is not None or (heard is not None and heard.event.get("event") == name)

    def strikes() -> bool:
        # A broker that is killed while it ends a transaction may lose that end (KAFKA-20734).
        with paused([psutil.Process(driver.pid)]), suppress(TimeoutError):
            wait_until(lambda: all_ended(kafka.bootstrap_servers), "all transactions to end", 3)
            kafka.brokers[0].kill()
            return True
        return False

    try:
        wait_until(lambda: hears("written"), "a batch", 120)
        wait_until(strikes, "a moment without a transaction", 60)
        wait_until(lambda: hears("away"), "the driver to notice", 200)
        kafka.brokers[0].start()
        wait_until(lambda: hears("back"), "the driver to notice again", 120)
        wait_until(lambda: hears("written"), "another batch", 120)
        assert driver.code is None
    finally:
        driver.end(60)
    lines = driver.log.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.lstrip().startswith(("at ", "... "))] == []


def test_driver_that_starts_over_leaves_the_lead_to_one_that_took_over_just_before(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the ledger again takes several requests, and a newer driver may come meanwhile."""
    pipeline, stop, tries = line().pipeline(), Stop(), list[str]()
    cluster = Cluster(pipeline.kafka)
    with ExitStack() as held:
        older, newer = (held.enter_context(Ledger.of(pipeline)) for _ in range(2))
        older.take()

        def opened(pipeline: Pipeline) -> Ledger:
            made = Ledger.of(pipeline)
            newer.take()
            return made

        def lead(context: Context) -> None:
            tries.append(context.run)
            if len(tries) == 1:
                raise errors.BrokerUnreachable("no broker answered")
            recovery.take(context.pipeline, context.ledger, context.cluster)

        monkeypatch.setattr("tailrace.startup.run.Ledger", SimpleNamespace(of=opened))
        none = cast("Any", None)
        context = Context("older", pipeline, none, cluster, older, none, ignored, stop, Unwatched())
        board = cast("Any", SimpleNamespace(failed=lambda error: None, lines=list))
        with pytest.raises(errors.DriverFenced, match="a newer driver of pipeline"):
            _outlast(Patience(pipeline, cluster, "older", stop), context, lead, board)
        assert not newer.overtaken()


def test_driver_outlasts_brokers_that_vanish_again_while_its_ledger_is_reopened(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first broker that answers may be away again, or lack the ledger's leader, when it is asked for the ledger."""
    pipeline, stop, tries, opened = line().pipeline(), Stop(), list[Ledger](), list[Ledger]()
    cluster, ask = Cluster(pipeline.kafka), Ledger.latest
    away = errors.BrokerUnreachable("no broker answered")
    closed, close = list[Ledger](), Ledger.close

    def reopened(pipeline: Pipeline) -> Ledger:
        if not opened:
            opened.append(older)
            raise away
        opened.append(Ledger.of(pipeline))
        return opened[-1]

    def latest(ledger: Ledger) -> Any:
        if len(opened) == 2:
            raise away
        return ask(ledger)

    def noted(ledger: Ledger) -> None:
        closed.append(ledger)
        close(ledger)

    def lead(context: Context) -> None:
        tries.append(context.ledger)
        if len(tries) == 1:
            raise away
        recovery.take(context.pipeline, context.ledger, context.cluster)

    with ExitStack() as held:
        older = held.enter_context(Ledger.of(pipeline))
        older.take()
        monkeypatch.setattr("tailrace.startup.run.Ledger", SimpleNamespace(of=reopened))
        monkeypatch.setattr(Ledger, "latest", latest)
        monkeypatch.setattr(Ledger, "close", noted)
        none = cast("Any", None)
        context = Context("older", pipeline, none, cluster, older, none, ignored, stop, Unwatched())
        board = cast("Any", SimpleNamespace(failed=lambda error: None, lines=list))
        _outlast(Patience(pipeline, cluster, "older", stop), context, lead, board)
        assert tries == [older, opened[2]]
        assert closed == [opened[1], older, opened[2]]


def test_driver_whose_ledger_was_not_reopened_at_first_still_leaves_the_lead_to_a_newer_one(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the ledger that it has led with knows of a newer driver that has written no plan yet."""
    pipeline, stop, tries = line().pipeline(), Stop(), list[Ledger]()
    cluster = Cluster(pipeline.kafka)
    with ExitStack() as held:
        older, newer = (held.enter_context(Ledger.of(pipeline)) for _ in range(2))
        older.take()

        def lead(context: Context) -> None:
            tries.append(context.ledger)
            raise errors.BrokerUnreachable("no broker answered")

        def reopened(pipeline: Pipeline) -> Ledger:
            if newer._producer is not None:
                return Ledger.of(pipeline)
            newer.take()
            raise errors.BrokerUnreachable("no broker answered")

        monkeypatch.setattr("tailrace.startup.run.Ledger", SimpleNamespace(of=reopened))
        none = cast("Any", None)
        context = Context("older", pipeline, none, cluster, older, none, ignored, stop, Unwatched())
        board = cast("Any", SimpleNamespace(failed=lambda error: None, lines=list))
        with pytest.raises(errors.DriverFenced, match="a newer driver of pipeline"):
            _outlast(Patience(pipeline, cluster, "older", stop), context, lead, board)
        assert tries == [older]
        assert not newer.overtaken()
