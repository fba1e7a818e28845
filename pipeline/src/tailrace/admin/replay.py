"""Exactly-once replay of rejected records to their source topics, however often the command is repeated.

A transaction holds records and the marks that say which were sent. The marks are offsets of the consumer group
`tailrace.<pipeline>.replay` on the rejected topic: everything before the offset was sent, and its metadata lists what
was sent beyond it. A second replay takes the same transactional id, and so fences the first before it reads the marks.
The brokers abort a transaction that stays open for long, so a long replay has several, and each marks all that was sent
by its end. Each has an epoch of its own: the end of the last one may have been sent twice, and would end the next one
before that has its marks (docs/decisions/0015).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as RawMessage

from tailrace.admin.selection import Home, Marks, Selection
from tailrace.config import Kafka
from tailrace.errors import CommitInDoubt, KafkaFailed, OptionRefused
from tailrace.kafka.clients import add_offsets, client_options, ended_by, fatal, persist, told
from tailrace.kafka.errors import PURGED, code_of, is_fenced, is_retriable, translate
from tailrace.kafka.informed_reader import InformedReader
from tailrace.kafka.pending_offsets import Stored
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import before_rejection
from tailrace.kafka.rights import Operation, Right, on_groups, on_topic, on_transactions

_TIMEOUT_MS = 120_000  # a killed replay may hold up the source topic's readers this long
_PART = 30.0  # seconds until a transaction is committed, and another one begun; the commit takes time, too
_SHORT_TIMEOUT_MS, _SHORT_PART = 30_000, 10.0  # where the brokers do not allow the other
_LIMIT = 60.0
_METADATA = 4000  # bytes; the broker takes 4096
_TRIES = 3  # to end a transaction soon after its question was answered
_ANY_SIZE = 1_000_000_000  # the topic decides how large a record may be


def group(pipeline: str) -> str:
    """Return the consumer group whose offsets are the marks; it is also the transactional id."""
    return f"tailrace.{pipeline}.replay"


class Replay:
    """One replay of a pipeline's rejected topic: takes over, reads the marks, sends."""

    def __init__(self, kafka: Kafka, pipeline: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._name = group(pipeline)
        marking = on_groups(pipeline), on_topic(Operation.READ, topic)
        self._rights: tuple[Right, ...] = (on_transactions(pipeline), *marking)
        self._base = client_options(kafka)
        self._reader = InformedReader(self._base, self._name)
        self._timeout, self._part = _TIMEOUT_MS, _PART
        self._producer = self._made()
        self._partitions = partitions
        self._error: KafkaException | None = None
        self._homes: set[str] = set()
        self._told: dict[int, Marks] = {}
        self._consumer: Consumer | None = None  # whose broker told them
        self._marked = 0  # records of transactions that are committed
        self._begun = 0.0  # when the open transaction began
        self._due = 0.0  # when it is to be committed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    def marks(self) -> dict[int, Marks]:
        """Fence every other replay, settle a transaction that one left open, and read what was sent so far.

        A broker that has lost the group would not know what the last replay sent (docs/decisions/0040).
        """
        self._take()
        doing = f"reading the marks of {self._name!r}"
        places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        for _ in range(_TRIES):
            try:
                informed = self._reader.inform(self._producer, places[0], _LIMIT, doing)
            except KafkaException as error:
                raise translate(error, doing, kept=self._kept, rights=self._rights) from error
            self._producer = self._made()
            self._take()  # this ends the transaction of the question
            if informed.recent:
                break
        found = self._reader.read(places, doing, self._rights, _LIMIT, informed.consumer)
        self._told = {each.partition: Marks.read(each.offset, each.metadata) for each in found}
        self._consumer = informed.consumer
        return self._told

    def _take(self) -> None:
        def take() -> None:
            try:
                self._producer.init_transactions(_LIMIT)
            except KafkaException as error:
                if code_of(error) != KafkaError.INVALID_TRANSACTION_TIMEOUT or self._timeout == _SHORT_TIMEOUT_MS:
                    raise
                self._timeout, self._part = _SHORT_TIMEOUT_MS, _SHORT_PART
                self._producer = self._made()
                self._producer.init_transactions(_LIMIT)

        persist(take, f"taking over the transactional id {self._name!r}", rights=self._rights)

    def _made(self) -> Producer:
        return Producer(
            self._base
            | {
                "transactional.id": self._name,
                "transaction.timeout.ms": self._timeout,
                "partitioner": "murmur2_random",
                "message.max.bytes": _ANY_SIZE,
                "linger.ms": 5,
            }
        )

    def send(
        self, messages: Iterable[tuple[Message, Home] | None], selection: Selection, before: Mapping[int, Marks]
    ) -> None:
        """Send the messages, which are those of the selection; fail if some of them no longer exist.

        None stands for a record that is not sent: reading on may take longer than a transaction.
        """
        ends = {place: offsets[-1] for place, offsets in selection.offsets.items()}
        place, most = max(
            selection.marks(before, self._partitions, ends).items(), key=lambda each: len(each[1].metadata)
        )
        if len(most.metadata) > _METADATA:
            raise OptionRefused(
                f"the records to replay form {len(most.beyond)} ranges of partition {place}, too many to mark",
                kept="nothing was sent",
                then="replay fewer at once, the oldest first; or use --all, and --to if outputs lie between: without "
                "it, they are left out",
            )
        last: dict[int, int] = {}
        sent = 0
        marked = before
        try:
            for each in messages:
                if each is not None:
                    message, home = each
                    if sent == self._marked:
                        if sent:
                            self._renew(marked)
                        self._begin()
                    self._produce(message, home)
                    last[message.partition] = message.offset
                    sent += 1
                if sent > self._marked and time.monotonic() >= self._due:
                    marked = selection.marks(before, self._partitions, last)
                    self._finish(marked, sent)
            if sent != len(selection.wanted):
                raise KafkaFailed(
                    f"{len(selection.wanted)} records of {self._topic!r} were selected, but only {sent} still exist",
                    kept=self._kept,
                    then="the topic's retention may just have removed them: try again",
                )
            if sent > self._marked:
                self._finish(selection.marks(before, self._partitions, last), sent)
        except CommitInDoubt:
            raise
        except BaseException as error:
            # Asked before the abort, which may end the producer for a reason of its own. What ended it already may
            # have been reported as no more than that.
            cause = (ended_by(self._producer) or error) if isinstance(error, KafkaException) else None
            with contextlib.suppress(KafkaException):
                told(self._producer, lambda: self._producer.abort_transaction(_LIMIT))
            if isinstance(cause, KafkaException):
                raise self._refused(cause) from error
            raise

    def _renew(self, marked: Mapping[int, Marks]) -> None:
        """Take a new epoch. That fences another replay, which may have fenced this one: it must not have sent more."""
        self._producer = self._made()
        if self.marks() != marked:
            raise self._taken_over()

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._due = self._begun + self._part
        self._producer.begin_transaction()

    def _finish(self, marks: Mapping[int, Marks], sent: int) -> None:
        """Commit the open transaction with these marks, unless one of them is too long: a later one may fit."""
        if any(len(each.metadata) > _METADATA for each in marks.values()):
            self._due = time.monotonic() + self._part
            return
        self._serve(lambda: self._producer.flush(_LIMIT))
        offsets = [TopicPartition(self._topic, number, mark.before, mark.metadata) for number, mark in marks.items()]
        add_offsets(self._producer, offsets, self._reader.metadata, _LIMIT, "adding the marks")
        self._confirm(offsets)
        self._commit()
        self._marked = sent

    def _confirm(self, places: Sequence[TopicPartition]) -> None:
        """Refuse to commit if the broker that told the marks had lost the group before, and another replay has sent.

        All marks are written, also those of partitions of which nothing is sent.
        """

        def same(told: Stored) -> bool:
            return Marks.read(told.offset, told.metadata) == self._told[told.partition]

        consumer = self._consumer or self._reader.consumer
        for _ in range(_TRIES):
            if self._reader.confirms(consumer, places, _LIMIT, same):
                return
            consumer = self._reader.renewed(consumer)  # the group may have moved to another broker since
        raise KafkaFailed(
            f"no broker confirms what {self._name!r} had sent when this replay began: another replay has sent "
            "something meanwhile, or the brokers do not answer",
            kept=self._kept,
            then="repeat the command",
        )

    def _produce(self, message: Message, home: Home) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(before_rejection(message.headers))
        self._homes.add(home.topic)
        while True:
            try:
                self._producer.produce(
                    home.topic,
                    message.value,
                    message.key,
                    -1 if home.partition is None else home.partition,
                    headers=headers,
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                self._serve(lambda: self._producer.poll(0.1))
        self._serve(lambda: self._producer.poll(0))

    def _serve(self, call: Callable[[], object]) -> None:
        """Run a call that runs librdkafka's callbacks, and raise what they reported."""
        error = fatal(self._producer, call)
        if error is not None:
            raise error
        if self._error is not None:
            raise self._error

    def _delivered(self, error: object, message: RawMessage) -> None:
        if isinstance(error, KafkaError) and self._error is None and error.code() not in PURGED:
            self._error = KafkaException(error)

    def _commit(self) -> None:
        try:
            told(self._producer, lambda: self._producer.commit_transaction(_LIMIT))
        except KafkaException as error:
            if not is_retriable(error):
                raise
            raise CommitInDoubt(
                f"the commit of the replay was not answered: {error.args[0].str()}",
                kept="the records and their marks are in one transaction: both were written, or neither",
                then="repeat the command; nothing is sent twice",
            ) from error

    @property
    def _kept(self) -> str:
        return f"{self._marked} records were sent and are marked as replayed" if self._marked else "nothing was sent"

    def _refused(self, error: KafkaException) -> Exception:
        if is_fenced(error):
            spent, limit = time.monotonic() - self._begun, self._timeout / 1000
            if spent > limit:
                return KafkaFailed(
                    f"a transaction of the replay stayed open for {spent:.0f} s, and the brokers end one after "
                    f"{limit:g} s",
                    kept=self._kept,
                    then="tailrace doctor FILE, then repeat the command, with fewer records if it happens again",
                )
            return self._taken_over()
        doing = f"replaying {self._topic!r}"
        rights = [*(on_topic(Operation.WRITE, topic) for topic in sorted(self._homes)), *self._rights]
        return translate(self._error or error, doing, kept=self._kept, rights=rights)

    def _taken_over(self) -> KafkaFailed:
        return KafkaFailed(
            f"another replay has taken over the transactional id {self._name!r}",
            kept=self._kept,
            then="repeat the command once the other one has ended",
        )
