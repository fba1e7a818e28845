"""A look at the source whose brokers take their time: topics may be others when the answer comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.config import Pipeline, Sink, Source
from tailrace.driver import look
from tailrace.driver.look import TOPICS_EVERY, Look
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster

PIPELINE = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))


class Brokers:
    """Brokers with one topic, which is deleted and created again while the first question for its ends waits."""

    def __init__(self, waits: float) -> None:
        self.now, self.id, self.waits, self.admin = 100.0, "old", waits, None

    def latest(self, places: list[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        """Answer when the topic exists again."""
        if self.id == "old":
            self.now, self.id = self.now + self.waits, "new"
        return dict.fromkeys(places, 600)


def seen(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> look.Seen:
    """Look once."""
    monkeypatch.setattr(look, "time", SimpleNamespace(monotonic=lambda: brokers.now))
    monkeypatch.setattr(look, "topic_ids", lambda admin, names: {"in": (brokers.id, 1)})
    monkeypatch.setattr("tailrace.kafka.source.partitions_of", lambda pipeline, cluster: [("in", 0)])
    one: Any = Look(PIPELINE, cast("Cluster", brokers))
    found: look.Seen = one({("in", 0): 400})
    return found


def test_ends_of_a_topic_that_was_created_again_come_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the older topic's id, offsets of the older would be planned for the new, and said to have been read."""
    assert seen(monkeypatch, Brokers(waits=3 * TOPICS_EVERY)).topics == {"in": "new"}


def test_quick_answer_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids are at most a second old, which is asked once a second, not once a look."""
    assert seen(monkeypatch, Brokers(waits=TOPICS_EVERY / 2)).topics == {"in": "old"}
