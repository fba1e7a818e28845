"""A plain consumer: every record of a topic, from the beginning to the end at the time of the call, and its id.

It serves tools that look at topics from outside (the proof, the list of rejected records). It joins no group and
commits nothing. At read_committed it waits for an open transaction before the end, because stopping there would
report that transaction's records as lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as RawMessage

from tailrace.config import Isolation, Kafka
from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import client_options, freed
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import translate
from tailrace.kafka.fetch_progress import FetchProgress, reporting
from tailrace.kafka.rights import Operation, on_topic

LIMIT = 60.0  # seconds without any progress
_FETCHED = 1000
_WAIT = 0.1
_PASSING = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})


class Range(NamedTuple):
    """Offsets of one partition, the end not included."""

    start: int
    end: int


class Message(NamedTuple):
    """A record as it is in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def header(self, name: str) -> bytes | None:
        """Return a header's value; of several with the same name, the last one, as in Kafka's own clients."""
        return next((value for each, value in reversed(self.headers) if each == name), None)

    def text(self, name: str) -> str | None:
        """Return a header's value as text."""
        value = self.header(name)
        return None if value is None else value.decode("utf-8", "backslashreplace")


class By(StrEnum):
    """Where a record's id is found."""

    KEY = "key"
    HEADER = "header"
    JSON = "json"


@dataclass(frozen=True)
class Identity:
    """How to find a record's id: `key`, `header:NAME` or `json:$.a.b`."""

    by: By
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form; the ValueError lists the valid forms."""
        kind, _, path = text.partition(":")
        if text == By.KEY:
            return cls(By.KEY)
        if kind == By.HEADER and path:
            return cls(By.HEADER, (path,))
        steps = tuple(path.removeprefix("$.").split("."))
        if kind == By.JSON and path.startswith("$.") and all(steps):
            return cls(By.JSON, steps)
        raise ValueError(f"an id is found by `key`, `header:NAME` or `json:$.a.b`, not by {text!r}")

    def __str__(self) -> str:
        return ":".join(filter(None, (self.by, ("$." if self.by is By.JSON else "") + ".".join(self.path))))

    def of(self, message: Message) -> bytes | None:
        """Return the record's id; None if it has none."""
        if self.by is By.KEY:
            return message.key
        if self.by is By.HEADER:
            return message.header(self.path[0])
        return _in_json(message.value, self.path)


def _in_json(value: bytes | None, path: tuple[str, ...]) -> bytes | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    for step in path:
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            return None
    if found is None:
        return None
    # A number and its text are the same id: producers differ in which one they write.
    text = found if isinstance(found, str) else json.dumps(found, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def read(
    kafka: Kafka,
    topic: str,
    *,
    isolation: Isolation = Isolation.READ_COMMITTED,
    limit: float = LIMIT,
) -> Iterator[Message]:
    """Yield the records of a topic; this call fixes the end, not the first step of the iteration."""
    cluster = Cluster(kafka)
    places = [(topic, number) for number in range(cluster.require([topic], "topic")[topic])]
    lows, highs = cluster.earliest(places), cluster.latest(places)
    ranges = {number: (lows[each, number], highs[each, number]) for each, number in places}
    filled = {number: Range(low, high) for number, (low, high) in ranges.items() if high > low}
    return _records(_options(kafka, isolation), topic, filled, limit)


def read_ranges(
    kafka: Kafka, topic: str, ranges: Mapping[int, Range], *, isolation: Isolation, limit: float = LIMIT
) -> Iterator[Message]:
    """Yield the records in these ranges of a topic's partitions, which must end before an open transaction."""
    return _records(_options(kafka, isolation), topic, ranges, limit)


def read_one(kafka: Kafka, topic: str, partition: int, offset: int, *, limit: float = LIMIT) -> Message | None:
    """Return the committed record at an offset; None if there is none."""
    cluster = Cluster(kafka)
    place = (topic, partition)
    if partition >= cluster.require([topic], "topic")[topic]:
        return None
    if not cluster.earliest([place])[place] <= offset < cluster.latest([place])[place]:
        return None
    wanted = {partition: Range(offset, offset + 1)}
    return next(_records(_options(kafka, Isolation.READ_COMMITTED), topic, wanted, limit), None)


def remaining(
    options: Mapping[str, Any], records: Iterable[tuple[str, int, int]], *, limit: float = LIMIT
) -> set[tuple[str, int, int]]:
    """Return those of these records (topic, partition, offset) that exist, also of aborted or open transactions.

    What a compacted topic has lost is left out; what lies before the start of a log is an error.
    """
    wanted: dict[str, dict[int, Range]] = {}
    asked = set(records)
    for topic, partition, offset in sorted(asked):
        ranges = wanted.setdefault(topic, {})
        ranges[partition] = Range(ranges[partition].start if partition in ranges else offset, offset + 1)
    own = {**options, **_reading(Isolation.READ_UNCOMMITTED)}
    found = {each[:3] for topic, ranges in wanted.items() for each in _records(own, topic, ranges, limit)}
    return asked & found


@contextmanager
def follow(kafka: Kafka, topic: str, *, newest: bool, wait: float, limit: float = LIMIT) -> Iterator[Iterator[Message]]:
    """Yield the committed records of a topic, from its beginning or from now on.

    They end when every partition has been read to its end, and then `wait` seconds have brought nothing.
    """
    cluster = Cluster(kafka)
    places = [(topic, number) for number in range(cluster.require([topic], "topic")[topic])]
    first = (cluster.latest if newest else cluster.earliest)(places)
    progress = FetchProgress()
    options = _options(kafka, Isolation.READ_COMMITTED) | reporting(limit) | {"stats_cb": progress.heard}
    consumer = Consumer(options)
    try:
        consumer.assign([TopicPartition(*each, first[each]) for each in places])
        yield _followed(consumer, topic, {number for _, number in places}, wait, limit, progress)
    finally:
        consumer.close()


def _followed(
    consumer: Consumer, topic: str, waiting: set[int], wait: float, limit: float, progress: FetchProgress
) -> Iterator[Message]:
    heard = time.monotonic()
    while waiting or time.monotonic() - heard < wait:
        for raw in consumer.consume(_FETCHED, _WAIT):
            number, _ = _progress(raw, topic)
            if number is None:
                continue
            if raw.error() is None:
                yield _message(raw)
                heard = time.monotonic()  # the time that the caller takes does not count
            elif number in waiting:  # the end, not just of what was fetched
                waiting.discard(number)
                heard = time.monotonic()
        if progress.moved((topic, number) for number in waiting):
            heard = time.monotonic()
        if waiting and time.monotonic() - heard > limit:
            left = ", ".join(f"{topic}-{number}" for number in sorted(waiting)[:5])
            raise KafkaFailed(
                f"reading {topic!r}: nothing came for {limit:g} s from {left}",
                kept="nothing was written",
                then="tailrace doctor -b HOST:PORT",
            )


def _options(kafka: Kafka, isolation: Isolation) -> dict[str, Any]:
    return client_options(kafka) | _reading(isolation)


def _reading(isolation: Isolation) -> dict[str, Any]:
    return {
        "group.id": f"tailrace.reader.{uuid4().hex}",
        "isolation.level": str(isolation),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        # If records vanish during the read, fail: a proof must not skip any.
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": 16_384,
    }


def _records(options: dict[str, Any], topic: str, ranges: Mapping[int, Range], limit: float) -> Iterator[Message]:
    if not ranges:
        return
    progress = FetchProgress()
    consumer = Consumer(options | reporting(limit) | {"stats_cb": progress.heard})
    try:
        consumer.assign([TopicPartition(topic, number, each.start) for number, each in ranges.items()])
        reached = {number: each.start for number, each in ranges.items()}
        waiting = set(ranges)
        until = time.monotonic() + limit
        while waiting:
            for raw in consumer.consume(_FETCHED, _WAIT):
                place, offset = _progress(raw, topic)
                if place is None or place not in waiting:
                    continue
                if offset > reached[place]:
                    reached[place] = offset
                    until = time.monotonic() + limit
                if raw.error() is None and offset <= ranges[place].end:
                    yield _message(raw)
                    until = time.monotonic() + limit  # the time that the caller takes does not count
                if offset >= ranges[place].end:
                    waiting.discard(place)
            if progress.moved((topic, number) for number in waiting):  # perhaps through aborted records
                until = time.monotonic() + limit
            if waiting and time.monotonic() > until:
                raise _stalled(
                    topic, [(number, reached[number], ranges[number].end) for number in sorted(waiting)], limit
                )
    finally:
        freed("a consumer", consumer.close)


def _progress(raw: RawMessage, topic: str) -> tuple[int | None, int]:
    """Return how far which partition was read: past a record, or to its current end after a transaction's marker."""
    error = raw.error()
    if error is None:
        return raw.partition(), (raw.offset() or 0) + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return raw.partition(), raw.offset() or 0
    if error.retriable() or error.code() in _PASSING:
        return None, 0
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return None, 0  # the group is only a name that the client requires
    rights = [on_topic(Operation.READ, topic)]
    raise translate(error, f"reading {topic}-{raw.partition()}", kept="nothing was written", rights=rights)


def _message(raw: RawMessage) -> Message:
    return Message(
        str(raw.topic()),
        int(raw.partition() or 0),
        int(raw.offset() or 0),
        int(raw.timestamp()[1]),
        _bytes(raw.key()),
        _bytes(raw.value()),
        tuple((str(header[0]), _bytes(header[1])) for header in raw.headers() or ()),
    )


def _bytes(value: object) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _stalled(topic: str, waiting: Sequence[tuple[int, int, int]], limit: float) -> KafkaFailed:
    left = ", ".join(f"{topic}-{number} at {reached} of {end}" for number, reached, end in waiting[:5])
    return KafkaFailed(
        f"reading {topic!r}: no progress for {limit:g} s before its end: {left}"
        + (f" and {len(waiting) - 5} more" if len(waiting) > 5 else ""),
        kept="nothing was written",
        then="wait until the open transaction that blocks readers has ended, or, where the command has it, use "
        "--isolation read_uncommitted",
    )
