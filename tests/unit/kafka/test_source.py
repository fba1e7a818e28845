"""Stored positions and answers of brokers that lag or are cut off: what they say is asked again before it counts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import Any, cast

import pytest

from tailrace import errors
from tailrace.config import Pipeline, Sink, Source
from tailrace.kafka import source
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster

PLACES = [("in", 0), ("in", 1)]
STORED = dict.fromkeys(PLACES, 400)


class Brokers:
    """A cluster whose first answers, as many as a test says, come from a broker that lags."""

    admin = None

    def __init__(self, stale: int) -> None:
        self.stale = stale

    def answer(self, stale: Any, right: Any) -> Any:
        """Return the next answer."""
        self.stale -= 1
        return stale if self.stale >= 0 else right

    def earliest(self, places: TopicPartitions) -> TopicPartitions:
        """Return the first offsets."""
        return dict.fromkeys(places, 0)


class Ends(Brokers):
    """One that does not know the last records."""

    def agreed_latest(self, places: list[tuple[str, int]]) -> TopicPartitions:
        """Return the ends that the brokers agree on."""
        return self.latest(dict.fromkeys(places, 0))

    def latest(self, places: TopicPartitions, committed: bool = False) -> TopicPartitions:
        """Return the ends."""
        return dict.fromkeys(places, self.answer(300, 500)) if places else {}

    def topics(self) -> dict[str, int]:
        """Return both partitions."""
        return {"in": 2}


class Partitions(Brokers):
    """One that does not know the last partition."""

    def latest(self, places: TopicPartitions, committed: bool = False) -> TopicPartitions:
        """Return the ends."""
        return dict.fromkeys(places, 500)

    def topics(self) -> dict[str, int]:
        """Return the partitions."""
        found: dict[str, int] = self.answer({"in": 1}, {"in": 2})
        return found

    def require(self, wanted: list[str], what: str) -> dict[str, int]:
        """Return the topics."""
        return self.topics()


def within(monkeypatch: pytest.MonkeyPatch, brokers: Any, loss: str) -> tuple[TopicPartitions, list[str]]:
    """Check the stored positions, with short waits."""
    monkeypatch.setattr(source, "CERTAIN_AFTER", 0.5)
    monkeypatch.setattr(source, "_ASK_EVERY", 0.01)
    monkeypatch.setattr(
        source, "by_name", lambda admin, names: ({"in": ("id", brokers.topics()["in"])}, frozenset[str]())
    )
    if not hasattr(brokers, "require"):
        monkeypatch.setattr(source, "partitions_of", lambda pipeline, cluster: PLACES)
    data = Source.model_validate({"topics": ["in"], "on_data_loss": loss})
    return source.within(Pipeline(pipeline="p", source=data, sink=Sink(topic="out")), STORED, cast("Cluster", brokers))


@pytest.mark.parametrize("loss", ["stop", "reset"])
@pytest.mark.parametrize("kind", [Ends, Partitions])
def test_start_asks_again_before_it_believes_less_than_is_known(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[int], Brokers], loss: str
) -> None:
    """Reset would deliver everything a second time, and stop would report a loss that did not happen."""
    assert within(monkeypatch, kind(4), loss) == (STORED, [])


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_start_believes_no_end_that_the_brokers_do_not_agree_on(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """A leader that is cut off from the others repeats its end for as long as that lasts."""
    monkeypatch.setattr(Ends, "agreed_latest", lambda brokers, places: dict.fromkeys(places, 500))
    assert within(monkeypatch, Ends(10_000), loss) == (STORED, [])


@pytest.mark.parametrize(
    ("kind", "error", "kept"),
    [(Ends, errors.OffsetsOutOfRange, dict.fromkeys(PLACES, 0)), (Partitions, errors.SourceChanged, {("in", 0): 400})],
)
def test_start_believes_what_the_brokers_repeat(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[int], Brokers], error: type[Exception], kept: TopicPartitions
) -> None:
    """After an unclean election the records are lost, and on_data_loss decides."""
    with pytest.raises(error):
        within(monkeypatch, kind(10_000), "stop")
    found, notes = within(monkeypatch, kind(10_000), "reset")
    assert found == kept
    assert notes


def ids(monkeypatch: pytest.MonkeyPatch, *answers: str) -> dict[str, str]:
    """Return the ids at a start whose plan names `new`; the last of the answers is repeated."""
    monkeypatch.setattr(source, "CERTAIN_AFTER", 0.3)
    monkeypatch.setattr(source, "_ASK_EVERY", 0.01)
    given = chain(answers, repeat(answers[-1]))
    monkeypatch.setattr(source, "by_name", lambda admin, names: ({"in": (next(given), 2)}, frozenset[str]()))
    monkeypatch.setattr(source, "partitions_of", lambda pipeline, cluster: PLACES)
    pipeline = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))
    return source.ids(pipeline, cast("Cluster", Brokers(0)), {"in": "new"})


def test_start_asks_again_before_it_believes_another_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that lags shows the id of a topic that was deleted before; the topic is still the planned one."""
    assert ids(monkeypatch, "old", "old", "new", "old", "new") == {"in": "new"}
    assert ids(monkeypatch, "newer") == {"in": "newer"}


def test_start_ends_if_the_brokers_never_agree_on_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither id may be taken for the topic's; another start asks again."""
    monkeypatch.setattr(source, "_AGREE_WITHIN", 0.5)
    with pytest.raises(errors.KafkaFailed, match="contradicted each other about the ids of in"):
        ids(monkeypatch, *["old", "new"] * 1000)
