"""librdkafka's statistics, summed over producers that come and go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Producer

from tailrace.gateway.statistics import Statistics, Window, read, together
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures
from tailrace.testing import wait_until


def report(requests: int, latency: int = 0, count: int = 0, state: str = "Ready") -> str:
    """Return the statistics of a producer that has sent this many requests to broker 1."""
    window = {"cnt": count, "p50": latency, "p99": 2 * latency, "max": 3 * latency}
    broker: dict[str, Any] = {"nodeid": 1, "source": "learned", "tx": requests, "waitresp_cnt": 2, "rtt": window}
    logical: dict[str, Any] = {"nodeid": -1, "source": "logical", "tx": 1}
    first: dict[str, Any] = {"nodeid": -1, "source": "configured", "connects": 1}
    return json.dumps(
        {
            "msg_size": 10,
            "brokers": {"a": broker, "b": logical, "c": first},
            "eos": {"txn_state": state, "epoch_cnt": 1},
        }
    )


@pytest.fixture
def measures() -> Measures:
    """Return the measures that receive them."""
    return Measures(metrics.EXECUTOR)


def test_a_real_producer_is_understood() -> None:
    """This version of librdkafka reports the fields that are read, even without a broker."""
    heard: list[str] = []
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "statistics.interval.ms": 50, "stats_cb": heard.append, "log_level": 0,
         "enable.idempotence": True, "error_cb": lambda error: None}
    )  # fmt: skip
    wait_until(lambda: producer.poll(0.05) is not None and bool(heard), "the statistics", 30)
    found = read(heard[0])
    assert found.idempotence
    assert found.transaction
    assert set(found.brokers) >= {"bootstrap"}
    raw = next(iter(json.loads(heard[0])["brokers"].values()))
    assert {"tx", "txbytes", "txretries", "req_timeouts", "txerrs", "connects", "disconnects", "waitresp_cnt", "rtt",
            "throttle", "nodeid", "source"} <= set(raw)  # fmt: skip


def test_counters_outlive_their_producers(measures: Measures) -> None:
    """A replacement counts from 0 again, and the sum continues."""
    statistics = Statistics(measures, 1.0)
    first, second = statistics.listener("p"), statistics.listener("p")
    first.heard(report(10))
    first.heard(report(15))
    second.heard(report(4))
    first.forget()
    third = statistics.listener("p")
    third.heard(report(1))
    assert measures.value(metrics.REQUESTS, "p", "1") == 20
    assert measures.value(metrics.REQUESTS, "p", "coordinator") == 3
    assert measures.value(metrics.CONNECTS, "p", "bootstrap") == 3
    assert measures.value(metrics.EPOCHS, "p") == 3


def test_gauges_cover_only_existing_producers(measures: Measures) -> None:
    """They are summed, and disappear with the last producer."""
    statistics = Statistics(measures, 1.0)
    first, second = statistics.listener("p"), statistics.listener("p")
    first.heard(report(10, 1000, 1))
    second.heard(report(10, 2000, 3, "InTransaction"))
    statistics.look()
    assert measures.value(metrics.IN_FLIGHT, "p", "1") == 4
    assert measures.value(metrics.QUEUED_BYTES, "p") == 20
    assert measures.values(metrics.TRANSACTION_STATE) == {("p", "Ready"): 1, ("p", "InTransaction"): 1}
    assert measures.value(metrics.LATENCY, "p", "1", "0.5") == pytest.approx(0.00175)
    assert measures.value(metrics.LATENCY, "p", "1", "1") == pytest.approx(0.006)
    first.forget()
    second.forget()
    statistics.look()
    assert measures.values(metrics.IN_FLIGHT) == {}
    assert measures.values(metrics.TRANSACTION_STATE) == {}
    assert measures.value(metrics.QUEUED_BYTES, "p") == 0


def test_windows_without_a_measurement_are_ignored() -> None:
    """An idle producer does not pull the median down to 0."""
    busy = Window(4, {"0.5": 2.0, "0.99": 3.0, "1": 4.0})
    idle = Window(0, {"0.5": 0.0, "0.99": 0.0, "1": 0.0})
    assert together([busy, idle]) == busy.quantiles
    assert together([idle]) == {}


def test_a_listener_sets_the_interval(measures: Measures) -> None:
    """It is in milliseconds, as librdkafka expects."""
    assert Statistics(measures, 2.5).listener("p").options["statistics.interval.ms"] == 2500
