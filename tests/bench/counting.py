"""The observer's view of an output topic: how much is visible, and whether it is correct.

A wrong result must not look fast: after each run every output record is read and its number ticked off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from bench.sides import BenchFailed
from tailrace.testing.records import QUIET

ASK_LIMIT = 30.0
ASK_AGAIN = 0.1
# A new topic's leader may not be known to each part of the broker yet.
PASSING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
READ_LIMIT = 600.0


class Ends:
    """The ends of a topic's partitions for a read_committed consumer."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._asked = {TopicPartition(topic, number): latest for number in range(partitions)}

    def __call__(self) -> dict[int, int]:
        """Ask for the ends; they count the control records of transactions, too."""
        until = time.monotonic() + ASK_LIMIT
        while True:
            try:
                return self._ask()
            except KafkaException as error:
                if error.args[0].code() not in PASSING or time.monotonic() > until:
                    raise
                time.sleep(ASK_AGAIN)

    def _ask(self) -> dict[int, int]:
        asked = self._admin.list_offsets(
            self._asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ASK_LIMIT
        )
        return {place.partition: answer.result(ASK_LIMIT).offset for place, answer in asked.items()}

    def total(self) -> int:
        """Add up the ends."""
        return sum(self().values())


@dataclass(frozen=True)
class Tally:
    """What an output topic holds, by the records' numbers."""

    records: int
    missing: int
    repeated: int
    foreign: int  # not expected in this topic


def tally(numbers: np.ndarray, expected: np.ndarray) -> Tally:
    """Compare the numbers that were read with those that were expected (a boolean for each number)."""
    inside = numbers[(numbers >= 0) & (numbers < len(expected))]
    seen = np.bincount(inside, minlength=len(expected))
    return Tally(
        len(numbers),
        int(np.count_nonzero(expected & (seen == 0))),
        int(seen[seen > 1].sum() - np.count_nonzero(seen > 1)),
        len(numbers) - len(inside) + int(seen[~expected].sum()),
    )


def check(tally: Tally, expected: int, variant: str, *, exactly: bool) -> None:
    """Raise BenchFailed unless everything arrived, and nothing else; an at-least-once side may repeat."""
    if tally.missing or tally.foreign or (exactly and tally.repeated):
        raise BenchFailed(
            f"{variant} wrote {tally.records} records where {expected} were expected: {tally.missing} are missing, "
            f"{tally.repeated} repeated, {tally.foreign} do not belong there"
        )


def read(bootstrap: str, topic: str, partitions: int, number: Callable[[bytes], int]) -> tuple[np.ndarray, bytes]:
    """Read a topic from beginning to end at read_committed; return the records' numbers and one of the records."""
    ends = {partition: end for partition, end in Ends(bootstrap, topic, partitions)().items() if end > 0}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid4().hex}",  # the client insists on a name; no group is joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **QUIET,
        }
    )
    found: list[int] = []
    sample = b""
    until = time.monotonic() + READ_LIMIT
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        while ends:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"waited {READ_LIMIT:.0f} s for the end of {topic}; partitions {sorted(ends)} remain"
                )
            messages = consumer.consume(10_000, 0.1)
            for message in messages:
                if message.error() is not None:
                    raise BenchFailed(f"reading {topic}: {message.error()}")
                sample = message.value() or b""
                found.append(number(sample))
            # The position moves past the control records at a partition's end, which are no messages.
            for place in consumer.position([TopicPartition(topic, partition) for partition in ends]):
                if place.offset >= ends[place.partition]:
                    del ends[place.partition]
    finally:
        consumer.close()
    return np.array(found, dtype=np.int64), sample
