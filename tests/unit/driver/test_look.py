"""A look at the source whose brokers take their time: topics may be others when the answer comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.config import Pipeline, Sink, Source
from tailrace.driver import look
from tailrace.driver.look import TOPICS_EVERY, Look
from tailrace.driver.source_changes import changes
from tailrace.errors import KafkaFailed, TopicUnknown
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.source import CERTAIN_AFTER
from tailrace.progress.plan import Away

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


def seen(monkeypatch: pytest.MonkeyPatch, brokers: Brokers, looks: int = 1) -> look.Seen:
    """Return the last of some looks, which are some seconds apart."""
    monkeypatch.setattr(look, "time", SimpleNamespace(monotonic=lambda: brokers.now))
    monkeypatch.setattr("tailrace.kafka.source.by_name", lambda admin, names: ({"in": (brokers.id, 1)}, frozenset()))
    monkeypatch.setattr("tailrace.kafka.source.partitions_of", lambda pipeline, cluster: [("in", 0)])
    one: Any = Look(PIPELINE, cast("Cluster", brokers))
    found: look.Seen = one({("in", 0): 400})
    for _ in range(looks - 1):
        brokers.now += CERTAIN_AFTER / 2
        found = one({("in", 0): 400})
    return found


def test_ends_of_a_topic_that_was_created_again_come_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the older topic's id, offsets of the older would be planned for the new, and said to have been read."""
    found = seen(monkeypatch, Brokers(waits=3 * TOPICS_EVERY))
    assert (found.topics, found.ends, found.disputed) == ({}, {}, frozenset({"in"}))
    found = seen(monkeypatch, Brokers(waits=3 * TOPICS_EVERY), 3)
    assert (found.topics, found.ends) == ({"in": "new"}, {("in", 0): 600})


def test_quick_answer_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids are at most a second old, which is asked once a second, not once a look."""
    assert seen(monkeypatch, Brokers(waits=TOPICS_EVERY / 2)).topics == {"in": "old"}


class Deleting(Brokers):
    """Brokers whose second topic is deleted after it was listed."""

    deleted = False

    def latest(self, places: list[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        """Know nothing of the topic that is deleted."""
        if ("gone", 0) in places:
            self.deleted = True
            raise TopicUnknown("the topic 'gone' does not exist")
        return super().latest(places)


def test_topic_that_is_deleted_after_it_was_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows from that is decided where a missing topic is; the run must not end before."""
    brokers = Deleting(waits=0.0)

    def listed(admin: object, names: object) -> tuple[dict[str, tuple[str, int]], frozenset[str]]:
        return {"in": ("new", 1), **({} if brokers.deleted else {"gone": ("id", 1)})}, frozenset()

    found = Look(PIPELINE, cast("Cluster", brokers))
    monkeypatch.setattr("tailrace.kafka.source.by_name", listed)
    monkeypatch.setattr("tailrace.kafka.source.partitions_of", lambda pipeline, cluster: [("in", 0), ("gone", 0)])
    assert found({("in", 0): 400, ("gone", 0): 7}).topics == {"in": "new"}


DISAGREED = -1


class Lagging:
    """Brokers whose next answers a test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.admin = 100.0, None
        self.topics: dict[str, tuple[str, int]] = {"in": ("id", 2)}
        self.end = 600
        self.agreed: int | None = None
        monkeypatch.setattr(look, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("tailrace.kafka.source.by_name", lambda admin, names: (self.topics, frozenset()))
        monkeypatch.setattr(
            "tailrace.kafka.source.partitions_of",
            lambda pipeline, cluster: [(topic, n) for topic, (_, count) in self.topics.items() for n in range(count)],
        )
        self.look = Look(PIPELINE, cast("Cluster", self))

    def latest(self, places: list[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        """Return the same end for each."""
        return dict.fromkeys(places, self.end)

    def agreed_latest(self, places: list[tuple[str, int]]) -> TopicPartitions:
        """Return the end that the brokers agree on, if they do."""
        if self.agreed == DISAGREED:
            raise KafkaFailed("the brokers do not agree")
        return dict.fromkeys(places, self.end if self.agreed is None else self.agreed)

    def named(self, name: str, seconds: float = 2 * TOPICS_EVERY) -> look.Seen:
        """Look after these seconds, at a topic with this id."""
        self.topics = {"in": (name, 2)}
        return self.seen(seconds)

    def seen(self, seconds: float = 0.0) -> look.Seen:
        """Look after these seconds."""
        self.now += seconds
        return self.look({("in", 0): 400, ("in", 1): 400})


def test_broker_that_lags_takes_no_partition_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count as new from its beginning when the next broker answers."""
    brokers = Lagging(monkeypatch)
    assert set(brokers.seen().ends) == {("in", 0), ("in", 1)}
    brokers.topics = {"in": ("id", 1)}
    assert set(brokers.seen(2 * TOPICS_EVERY).ends) == {("in", 0), ("in", 1)}


def test_earlier_end_is_believed_once_it_was_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former leader that is cut off does not know the last records; after an unclean election no leader does."""
    brokers = Lagging(monkeypatch)
    brokers.end = 300
    assert brokers.seen().short == frozenset()
    brokers.end = 500
    brokers.seen(CERTAIN_AFTER)
    brokers.end = 300
    assert brokers.seen().short == frozenset()
    assert brokers.seen(60 * CERTAIN_AFTER).short == frozenset()  # two answers, however far apart
    assert brokers.seen(1.0).short == {("in", 0), ("in", 1)}


@pytest.mark.parametrize("agreed", [450, DISAGREED])
def test_earlier_end_is_not_believed_unless_the_brokers_agree(monkeypatch: pytest.MonkeyPatch, agreed: int) -> None:
    """A leader that is cut off from the others repeats its end, and each repetition is doubted anew.

    Other partitions are read on, whether the brokers agree on another end or on none.
    """
    brokers = Lagging(monkeypatch)
    brokers.end, brokers.agreed = 300, agreed
    for _ in range(6):
        assert brokers.seen(CERTAIN_AFTER / 2).short == frozenset()
    brokers.agreed = 300
    assert [len(brokers.seen(CERTAIN_AFTER / 2).short) for _ in range(4)][-1] == 2


def test_missing_topic_counts_as_deleted_once_that_was_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lags may not know a new topic."""
    brokers = Lagging(monkeypatch)
    brokers.seen()
    brokers.topics = {}
    found = brokers.seen(2 * TOPICS_EVERY)
    assert (found.ends, found.deleted) == ({}, frozenset())
    brokers.seen(CERTAIN_AFTER / 2)
    assert brokers.seen(CERTAIN_AFTER / 2).deleted == {"in"}


def test_answer_that_a_topic_is_missing_counts_once_however_many_looks_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another topic keeps the answer for a second, and the brokers may take long to tell its ends."""
    brokers = Lagging(monkeypatch)
    brokers.topics = {"in": ("id", 2), "other": ("another", 1)}
    brokers.seen()
    brokers.topics = {"other": ("another", 1)}
    brokers.seen(2 * TOPICS_EVERY)
    brokers.seen()
    real = brokers.latest

    def late(places: list[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        brokers.now += CERTAIN_AFTER
        return real(places, committed)

    monkeypatch.setattr(brokers, "latest", late)
    assert brokers.seen().deleted == frozenset()


def test_deleted_topic_is_told_by_every_look_until_it_exists_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a long batch only the last of many looks is used; one without it would hide the loss."""
    brokers = Lagging(monkeypatch)
    brokers.seen()
    brokers.topics = {}
    for _ in range(10):
        found = brokers.seen(CERTAIN_AFTER / 2)
    assert found.deleted == {"in"}
    brokers.topics = {"in": ("new", 2)}
    found = brokers.seen(2 * TOPICS_EVERY)
    assert (found.topics, found.deleted) == ({"in": "new"}, frozenset())


@pytest.mark.parametrize("begun", [True, False])
def test_former_id_of_a_broker_that_lags_moves_no_position(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """Everything that was read of the topic would be delivered again. The first look knows the ids of the start."""
    brokers = Lagging(monkeypatch)
    positions: TopicPartitions = {("in", 0): 400, ("in", 1): 400}
    away: Away = {}
    if begun:
        brokers.look = Look(PIPELINE, cast("Cluster", brokers), {"in": "new"})
    else:
        assert brokers.named("new").topics == {"in": "new"}
    for name in ("old", "old", *["new"] * 8):
        found = changes(positions, {"in": "new"}, brokers.named(name), away)
        assert found.recreated == ()
        found.refuse_loss()
        positions, away = found.moved(positions, {}), found.away
        if name == "old":
            assert positions == {}  # nothing is planned, nor noted as read
    assert positions == {("in", 0): 400, ("in", 1): 400}


def test_topic_that_was_created_again_is_read_once_its_id_was_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then nothing is read: its offsets might be those of another topic."""
    brokers = Lagging(monkeypatch)
    brokers.named("old")
    for _ in range(2):
        found = brokers.named("new", CERTAIN_AFTER / 2)
        assert (found.topics, found.ends, found.disputed) == ({}, {}, frozenset({"in"}))
    found = brokers.named("new", CERTAIN_AFTER / 2)
    assert (found.topics, set(found.ends), found.disputed) == ({"in": "new"}, {("in", 0), ("in", 1)}, frozenset())


def test_id_that_was_replaced_is_not_believed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka gives no id twice: a broker that shows it lags, however often it is asked."""
    brokers = Lagging(monkeypatch)
    for name in ("old", *["new"] * 7):
        found = brokers.named(name)
    assert found.topics == {"in": "new"}
    for _ in range(10):
        assert brokers.named("old").topics == {}
    assert brokers.named("new").topics == {"in": "new"}


def test_id_of_a_topic_that_was_deleted_is_not_believed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions are gone by then, so all that a broker which was away still has of it would count as new."""
    brokers = Lagging(monkeypatch)
    brokers.seen()
    brokers.topics = {}
    for _ in range(3):
        found = brokers.seen(CERTAIN_AFTER)
    assert found.deleted == {"in"}
    brokers.topics = {"in": ("id", 2)}
    for _ in range(10):
        found = brokers.seen(CERTAIN_AFTER)
        assert (found.topics, found.ends) == ({}, {})
    assert brokers.named("new").topics == {"in": "new"}
