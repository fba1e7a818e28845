"""When an answer of the brokers that says less than is known is believed."""

from __future__ import annotations

from tailrace.driver.doubts import certain, longest, since
from tailrace.kafka.source import CERTAIN_AFTER


def test_doubt_is_believed_once_it_has_lasted() -> None:
    """A single answer that says otherwise begins it again."""
    lasting = since({}, {"a", "b"}, 100.0)
    assert certain(lasting, 100.0) == frozenset()
    lasting = since(lasting, {"a"}, 101.0)
    lasting = since(lasting, {"a", "b"}, 102.0)
    assert certain(lasting, 100.0 + CERTAIN_AFTER) == {"a"}
    assert certain(lasting, 102.0 + CERTAIN_AFTER) == {"a", "b"}


def test_topic_with_its_id_never_has_fewer_partitions() -> None:
    """Kafka removes none; with another id it is another topic."""
    known = {"same": ("id-1", 4), "other": ("id-2", 4), "missing": ("id-3", 4)}
    found = {"same": ("id-1", 2), "other": ("id-9", 2), "new": ("id-4", 1)}
    assert longest(known, found) == {"same": ("id-1", 4), "other": ("id-9", 2), "new": ("id-4", 1)}
    assert longest(known, {"same": ("id-1", 6)}) == {"same": ("id-1", 6)}
