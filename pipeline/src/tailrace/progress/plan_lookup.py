"""The search for a pipeline's last plan: backwards through the ledger, because only its newest record counts."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tailrace import errors
from tailrace.kafka.clients import TopicPartitions, freed
from tailrace.kafka.errors import translate
from tailrace.kafka.rights import Operation, on_groups, on_topic
from tailrace.progress.stream_plan import AnyPlan, read

_PLACES = 8  # partitions that plans are spread over; fixed, so that adding partitions to the ledger moves no plan
_LOOK_BACK = 256  # ledger records that the first backward search spans
_READ_LIMIT = 60.0  # longer than a killed driver's transaction can stay open
_SILENCE = 15.0  # seconds after which another consumer reads

_Ask = Callable[[list[tuple[str, int]]], TopicPartitions]


def place_of(name: str, partitions: int) -> int:
    """Return the partition of the ledger that a pipeline's plans are written to.

    A ledger that grows to _PLACES partitions moves the plan once; `PlanLookup.latest` then searches every partition.
    """
    return zlib.crc32(name.encode()) % _PLACES if partitions >= _PLACES else 0


class _Silent(Exception):
    """A consumer has heard nothing for long, and perhaps nothing at all."""

    def __init__(self, *, heard: bool) -> None:
        super().__init__()
        self.heard = heard


@dataclass
class PlanLookup:
    """One search, with one consumer at read_committed as long as it hears anything; close it.

    `earliest` and `latest_end` return the true ends: a consumer itself would stop before another pipeline's open
    transaction.
    """

    consumer: Callable[[], Consumer]
    topic: str
    earliest: _Ask
    latest_end: _Ask
    asker: str  # the pipeline whose rights are used
    _held: Consumer | None = None

    def latest(self, name: str, own: int, partitions: int) -> AnyPlan | None:
        """Return the last plan of a pipeline, from its `own` partition, or else from any of the ledger's."""
        found = self._in(name, own)
        if found is not None:
            return found
        plans = [self._in(name, number) for number in range(partitions) if number != own]
        return max((each for each in plans if each is not None), key=lambda plan: (plan.batch, plan.at), default=None)

    def _in(self, name: str, number: int) -> AnyPlan | None:
        place = (self.topic, number)
        low, high = self.earliest([place])[place], self.latest_end([place])[place]
        span = _LOOK_BACK
        while low < high:
            start = max(low, high - span)
            found = self._between(name, number, start, high)
            if found is not None:
                return read(found.value(), f"{self.topic}-{number} offset {found.offset()}")
            if start == low:
                break
            span *= 8
        return None

    def _between(self, name: str, number: int, start: int, end: int) -> Any:
        """Return a pipeline's last record between two offsets.

        A consumer that hears nothing is replaced: one that was told of no broker, as after all of them were suspended,
        has nobody left to ask.
        """
        limit = time.monotonic() + _READ_LIMIT
        heard = False
        while time.monotonic() < limit:
            consumer = self._held = self._held or self.consumer()
            consumer.assign([TopicPartition(self.topic, number, start)])
            try:
                return self._read(consumer, name, number, end, limit)
            except _Silent as silence:
                heard = heard or silence.heard
                self.close()
        if not heard:
            raise errors.BrokerUnreachable(
                f"no broker has delivered anything of the ledger {self.topic}-{number} within {_READ_LIMIT:.0f} s",
                kept="nothing was written",
                then="make the brokers reachable, then: tailrace doctor FILE",
            )
        raise errors.LedgerUnusable(
            f"the ledger {self.topic}-{number} was not read to its end within {_READ_LIMIT:.0f} s",
            kept="nothing was written",
            then="start again in a minute: an open transaction may be blocking it, or a broker has answered that is "
            "cut off from the others; or: tailrace doctor FILE",
        )

    def _read(self, consumer: Consumer, name: str, number: int, end: int, limit: float) -> Any:
        """Read a partition to this offset, and return the pipeline's last record."""
        found = None
        heard = begun = time.monotonic()
        while time.monotonic() < min(limit, heard + _SILENCE):
            message = consumer.poll(1.0)
            if message is None or message.partition() != number:
                continue
            heard = time.monotonic()
            problem = message.error()
            if problem is not None:
                if problem.name() == "_PARTITION_EOF":
                    if (message.offset() or 0) >= end:
                        return found
                    continue  # the end of the committed records: an open transaction hides later ones for a while
                rights = [on_topic(Operation.READ, self.topic), on_groups(self.asker)]
                raise translate(problem, f"reading the ledger {self.topic}-{number}", rights=rights)
            if message.key() == name.encode() and message.value() is not None:
                found = message  # also behind an end that only a broker of former times has said
            if (message.offset() or 0) >= end:
                return found
        raise _Silent(heard=heard > begun)

    def close(self) -> None:
        """Free the consumer, if there is one."""
        consumer, self._held = self._held, None
        if consumer is not None:
            consumer.assign([])
            freed("a consumer", consumer.close)
