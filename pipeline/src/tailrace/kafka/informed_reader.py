"""A group's offsets as they are, and not as a broker remembers them that has lost the group.

A broker that was suspended, or is cut off from the others, answers for its groups until it learns that another broker
has them by now. Its answer lacks what was committed since: a task would take a delivered sink partition for an open
one. No question of a reader shows that. But such a broker cannot take an offset: that needs the other brokers. So who
has just fenced a transactional id adds an offset to a transaction, and the reader's broker must know of it. From then
on its answers hold all that was committed before (docs/decisions/0040).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tailrace.kafka.clients import SHORT_TRY, add_offsets, committed, freed, persist
from tailrace.kafka.errors import code_of, is_retriable
from tailrace.kafka.pending_offsets import Stored, available, stored, unended
from tailrace.kafka.rights import Right

# If ever it were committed, it would contradict every plan, and be refused.
_NEVER = 2**62
_NOTE = "this transaction is aborted"
_PAUSE, _STALE_PAUSE = 0.02, 0.25
_ENDED = 10.0  # seconds; a transaction has ended everywhere once its producer may begin another one
_LOST_END = (
    "a transaction that has ended is still about to change the offset of partition {partition}: the brokers have lost "
    "its end, as Kafka 4.3 and later do for partitions that have no leader just then (KAFKA-20734); "
    "kafka-transactions.sh find-hanging shows it"
)
_RECENT = 5.0  # seconds; brokers miss one of theirs for 9 s before they move its groups (broker.session.timeout.ms)


@dataclass(frozen=True)
class Informed:
    """A client whose broker knew all that was committed when it was asked."""

    consumer: Consumer
    asked: float  # time.monotonic()

    @property
    def recent(self) -> bool:
        """Whether its broker probably has the group still: who fences now need not ask again."""
        return time.monotonic() - self.asked < _RECENT


class InformedReader:
    """A consumer that consumes nothing: it asks for the offsets of one group. Several threads may use it."""

    def __init__(self, options: Mapping[str, Any], group: str) -> None:
        self._options = {**options, "group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self._group = group
        self._consumer: Consumer | None = Consumer(self._options)
        self._lock = threading.Lock()

    @property
    def consumer(self) -> Consumer:
        """The client that is in use now."""
        with self._lock:
            if self._consumer is None:
                self._consumer = Consumer(self._options)
            return self._consumer

    @property
    def metadata(self) -> Any:
        """What a transaction needs to commit offsets for the group."""
        return self.consumer.consumer_group_metadata()

    def inform(self, producer: Producer, place: TopicPartition, limit: float, doing: str) -> Informed:
        """Return a client whose broker knows all that was committed until now.

        The producer has taken its transactional id, and nobody else commits at this place. Its transaction is left
        open, and must be aborted.
        """
        end = time.monotonic() + limit
        if not available(self.consumer):
            self._replace(self.consumer)  # a new client at least asks anew which broker has the group
        self._require_ended(place, limit)
        producer.begin_transaction()
        pending = TopicPartition(place.topic, place.partition, _NEVER, _NOTE)
        add_offsets(producer, [pending], self.metadata, limit, doing)
        while available(consumer := self.consumer):
            asked = time.monotonic()
            try:
                [found] = stored(consumer, self._group, [place], min(SHORT_TRY, limit))
                if found.pending:
                    return Informed(consumer, asked)
                why = KafkaException(KafkaError(found.error or KafkaError.NOT_COORDINATOR, _stale(found)))
            except KafkaException as error:
                why = error
            code = code_of(why)
            if not is_retriable(why) or time.monotonic() > end:
                raise why
            if code in {KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT}:
                self._replace(consumer)
                time.sleep(_STALE_PAUSE)
                # Once more, because a producer that was fenced meanwhile has nothing pending at any broker.
                add_offsets(producer, [pending], self.metadata, max(_PAUSE, end - time.monotonic()), doing)
            else:
                time.sleep(_PAUSE)
        return Informed(consumer, time.monotonic())

    def _require_ended(self, place: TopicPartition, limit: float) -> None:
        """Refuse a place that an earlier transaction is about to change: all of them have been ended.

        If the brokers have lost that end, a new transaction here, and its abort, would undo what was committed.
        """
        until, pending = time.monotonic() + limit, False
        while available(consumer := self.consumer):
            try:
                if not unended(consumer, self._group, place, min(SHORT_TRY, limit)):
                    return
                until = until if pending else time.monotonic() + min(limit, _ENDED)
                pending = True
                why = KafkaException(
                    KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT, _LOST_END.format(partition=place.partition))
                )
            except KafkaException as error:
                why = error
            if not is_retriable(why) or time.monotonic() > until:
                raise why
            self._replace(consumer)  # it may be a broker that has lost the group
            time.sleep(_STALE_PAUSE)

    def confirms(
        self, consumer: Consumer, places: Sequence[TopicPartition], limit: float, told: Callable[[Stored], bool]
    ) -> bool:
        """Return whether what was told of places is what a broker has committed that knows of an open transaction.

        The transaction is the asker's, and has added an offset to each. The broker of this client may be another one
        than when they were told.
        """
        if not available(consumer):
            return True
        limit = min(SHORT_TRY, limit)
        try:
            if not all(each.pending for each in stored(consumer, self._group, places, limit)):
                return False
            found = stored(consumer, self._group, places, limit, beneath=True)
        except KafkaException:  # nobody knows; the broker may have learned that it has lost the group
            return False
        return len(found) == len(places) and all(not each.error and told(each) for each in found)

    def read(
        self,
        places: Sequence[TopicPartition],
        doing: str,
        rights: Sequence[Right],
        limit: float,
        informed: Consumer | None = None,
    ) -> Sequence[TopicPartition | Stored]:
        """Return the group's offsets, as the broker of this client knows them."""
        if not available(informed or self.consumer):
            return committed(informed or self.consumer, list(places), doing, rights, limit)
        missed = 0

        def ask() -> list[Stored]:
            nonlocal missed
            consumer = informed or self.consumer
            try:
                found = stored(consumer, self._group, places, min(SHORT_TRY, limit))
            except KafkaException as error:
                missed += code_of(error) == KafkaError._TIMED_OUT
                # librdkafka asks that broker again and again. One that does not answer may be slow at first.
                if code_of(error) == KafkaError.NOT_COORDINATOR or missed > 1:
                    missed = 0
                    self._replace(consumer)
                raise
            for each in found:
                if each.error:
                    raise KafkaException(KafkaError(each.error))
            if len(found) < len(places):
                raise KafkaException(KafkaError(KafkaError._BAD_MSG, "a broker left partitions out of its answer"))
            return found

        return persist(ask, doing, limit, rights)

    def renewed(self, consumer: Consumer) -> Consumer:
        """Return another client than this one, which asks anew which broker has the group."""
        self._replace(consumer)
        return self.consumer

    def _replace(self, consumer: Consumer) -> None:
        """Use another client from now on. The old one is freed by whoever uses it last."""
        with self._lock:
            if self._consumer is consumer:
                self._consumer = None

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            freed("a consumer", consumer.close)


def _stale(found: Stored) -> str:
    return f"a broker that has lost the group answered, with offset {found.offset}"
