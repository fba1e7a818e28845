"""What a query with `exactly_once` does if it starts again after its brokers were away, or after it was replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tailrace
from support.kafkaproxy import ProxiedKafka, proxied
from support.proxy import Fault
from support.wire import Api
from tailrace.config import Kafka
from tailrace.demo.feed import create_topics
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import driver_id
from tailrace.progress.stream_plan import AnyPlan
from tailrace.testing import Record, consume, produce

pytestmark = [pytest.mark.integration, pytest.mark.takes(40)]

Sink = Callable[[DataFrame, int], None]
NAME, SOURCE, OUT = "again", "in", "out"


@pytest.fixture
def network() -> Iterator[ProxiedKafka]:
    """Start one broker behind a proxy."""
    with proxied() as kafka:
        create_topics(kafka.bootstrap_servers, [SOURCE, OUT], 1)
        yield kafka


def sink_of(kafka: ProxiedKafka) -> Sink:
    """Return a sink that connects through the proxy."""
    options = {"topic": OUT, "ledger.topic": "ledger", "id": NAME}
    return tailrace.exactly_once(**{"kafka.bootstrap.servers": kafka.proxied_servers, **options})


def fill(kafka: ProxiedKafka, start: int, end: int) -> None:
    """Write these numbers to the source."""
    produce(kafka.bootstrap_servers, SOURCE, [Record(b"%d" % number) for number in range(start, end)])


def run(spark: SparkSession, kafka: ProxiedKafka, folder: Path, sink: Sink) -> None:
    """Deliver what the source contains."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = reader.option("subscribe", SOURCE).option("startingOffsets", "earliest").load().select("value")
    writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def numbers(kafka: ProxiedKafka) -> list[int]:
    """Return what the sink's topic holds, sorted."""
    return sorted(int(each.value or b"") for each in consume(kafka.bootstrap_servers, OUT))


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_ANSWER])
def test_query_started_again_with_its_sink_recovers_from_an_outage(
    network: ProxiedKafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """The sink's producer may be unusable after the commit of a plan failed, so the sink takes a new one."""
    sink = sink_of(network)
    fill(network, 0, 10)
    run(spark, network, tmp_path, sink)
    fill(network, 10, 20)
    away = {"api": Api.END_TXN, "transaction": driver_id(NAME)}
    with monkeypatch.context() as patched:
        patched.setattr("tailrace.progress.ledger._COMMIT_LIMIT", 1.0)
        network.proxy.judge = lambda request: (
            fault if {"api": request.api, "transaction": request.transaction} == away else None
        )
        with pytest.raises(Exception, match=r"TR-2.*writing the plan of batch 1"):
            run(spark, network, tmp_path, sink)
    network.proxy.heal()
    run(spark, network, tmp_path, sink)
    fill(network, 20, 30)
    run(spark, network, tmp_path, sink)
    assert numbers(network) == list(range(30))


def test_replaced_sink_that_is_used_again_does_not_take_over(
    network: ProxiedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Otherwise two programs that start their queries again would replace each other for ever."""
    older, newer = sink_of(network), sink_of(network)
    for count, sink in enumerate((older, newer)):
        fill(network, count * 10, count * 10 + 10)
        run(spark, network, tmp_path, sink)
    fill(network, 20, 30)
    for _ in range(3):
        with pytest.raises(Exception, match="TR-301"):
            run(spark, network, tmp_path, older)
    run(spark, network, tmp_path, newer)
    assert numbers(network) == list(range(30))


def clients() -> int:
    """Return how many clients of Kafka this process has; each has a thread of this name."""
    names: list[str] = []
    for each in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since it was listed
            names.append((each / "comm").read_text(encoding="utf-8").strip())
    return names.count("rdk:main")


def test_program_that_starts_its_query_again_and_again_has_the_clients_of_one_sink(
    network: ProxiedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark keeps the sinks of ended queries for half an hour; a crash loop would run out of threads and files."""
    sinks, counts = [sink_of(network) for _ in range(4)], []
    for number, sink in enumerate(sinks):
        fill(network, number * 10, number * 10 + 10)
        run(spark, network, tmp_path, sink)
        counts.append(clients())
    assert counts[-1] <= counts[0], counts
    assert numbers(network) == list(range(40))


def test_sinks_that_refuse_the_ledger_keep_no_clients(
    network: ProxiedKafka, spark: SparkSession, tmp_path: Path
) -> None:
    """Each start of a query would leave some behind; its error is kept, and what it refers to."""
    plans: list[AnyPlan] = []
    for number in range(2):
        fill(network, number * 10, number * 10 + 10)
        run(spark, network, tmp_path, sink_of(network))
        with Ledger(NAME, "ledger", Kafka(bootstrap_servers=network.bootstrap_servers), 1, -1) as ledger:
            ledger.take()
            plans += [plan for plan in [ledger.latest()] if plan is not None]
            if number:
                ledger.write(plans[0], {})
    fill(network, 20, 30)
    sinks, counts = [sink_of(network) for _ in range(4)], []
    for sink in sinks:
        with pytest.raises(Exception, match="TR-303"):
            run(spark, network, tmp_path, sink)
        counts.append(clients())
    assert counts[-1] <= counts[0], counts
