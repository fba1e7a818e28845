"""The wait at the end of a bounded run: what it says when it gives up, and what it does not wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver import readable
from tailrace.driver.shutdown import Stop
from tailrace.kafka.clients import TopicPartitions


class Cluster:
    """A cluster whose sink topic has an open transaction."""

    def __init__(self) -> None:
        self.asked = 0

    def topics(self) -> dict[str, int]:
        """Return the topics; there is none of rejected records."""
        return {"out": 3, "other": 1}

    def latest(self, places: Any, committed: bool = False) -> TopicPartitions:
        """Return the ends, of which readers do not reach those of partitions 1 and 2."""
        self.asked += 1
        return {(topic, number): 10 if not committed or number == 0 else 5 for topic, number in places}


class Away(Cluster):
    """A cluster that does not answer."""

    def topics(self) -> dict[str, int]:
        """Raise."""
        raise errors.BrokerUnreachable("no broker answered")


def waited(cluster: Cluster, *, delivery: str = "exactly-once", stop: Stop | None = None) -> tuple[list[str], float]:
    """Wait with a clock that only sleeping advances; return what was said, and how long it took."""
    sections = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "delivery": delivery}}
    said, now = list[str](), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    context: Any = SimpleNamespace(
        pipeline=Pipeline.model_validate(sections),
        cluster=cluster,
        stop=stop or Stop(),
        emit=lambda event: said.append(event.what),
    )
    readable.wait(context, lambda: now[0], sleep)
    return said, now[0]


def test_run_whose_output_stays_hidden_says_behind_which_partition() -> None:
    """Another producer may keep its transaction open for as long as it likes."""
    said, took = waited(Cluster())
    hidden = "the end of out-1 and of 1 more"
    assert said == [f"after 10 s an open transaction still hides {hidden} from readers; this run's is committed"]
    assert took == pytest.approx(readable.LIMIT, abs=0.1)


def test_brokers_that_went_away_do_not_fail_a_run_that_has_delivered() -> None:
    """Its records are committed."""
    assert waited(Away()) == (["whether readers get the last records already is not known: no broker answered"], 0.0)


def test_nobody_waits_without_transactions_or_after_a_stop() -> None:
    """At least once, readers get records as they are written; and who stops a run wants its end."""
    cluster, stop = Cluster(), Stop()
    assert waited(cluster, delivery="at-least-once") == ([], 0.0)
    assert cluster.asked == 0
    stop("SIGTERM")
    assert waited(cluster, stop=stop) == ([], 0.0)
