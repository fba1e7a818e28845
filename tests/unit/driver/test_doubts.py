"""When an answer of the brokers that says less than is known is believed."""

from __future__ import annotations

from tailrace.driver.doubts import certain, longest, since
from tailrace.kafka.source import CERTAIN_AFTER


def test_doubt_is_believed_once_three_answers_and_ten_seconds_repeat_it() -> None:
    """A single answer that says otherwise begins it again."""
    lasting = since({}, {"a", "b"}, 100.0)
    lasting = since(lasting, {"a"}, 101.0)
    lasting = since(lasting, {"a", "b"}, 102.0)
    assert certain(lasting, 102.0) == frozenset()
    assert certain(lasting, 100.0 + CERTAIN_AFTER) == {"a"}
    lasting = since(since(lasting, {"a", "b"}, 103.0), {"a", "b"}, 104.0)
    assert certain(lasting, 102.0 + CERTAIN_AFTER) == {"a", "b"}


def test_two_answers_are_not_believed_however_far_apart() -> None:
    """Between two batches of a minute a broker may lag twice."""
    lasting = since(since({}, {"a"}, 100.0), {"a"}, 100.0 + 10 * CERTAIN_AFTER)
    assert certain(lasting, 100.0 + 10 * CERTAIN_AFTER) == frozenset()


def test_topic_with_its_id_never_has_fewer_partitions() -> None:
    """Kafka removes none; with another id it is another topic."""
    known = {"same": ("id-1", 4), "other": ("id-2", 4), "missing": ("id-3", 4)}
    found = {"same": ("id-1", 2), "other": ("id-9", 2), "new": ("id-4", 1)}
    assert longest(known, found) == {"same": ("id-1", 4), "other": ("id-9", 2), "new": ("id-4", 1)}
    assert longest(known, {"same": ("id-1", 6)}) == {"same": ("id-1", 6)}
