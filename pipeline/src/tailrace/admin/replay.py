"""Exactly-once replay of rejected records to their source topics, however often the command is repeated.

A transaction holds records and the marks that say which were sent. The marks are offsets of the consumer group
`tailrace.<pipeline>.replay` on the rejected topic: everything before the offset was sent, and its metadata lists what
was sent beyond it. A second replay takes the same transactional id, and so fences the first before it reads the marks.
The brokers abort a transaction that stays open for long, so a long replay has several, and each marks all that was sent
by its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as RawMessage

from tailrace.admin.rejected import Place, is_output, number
from tailrace.config import Kafka
from tailrace.errors import CommitInDoubt, KafkaFailed, OptionRefused
from tailrace.kafka.clients import add_offsets, client_options, committed, ended_by, fatal, persist, told
from tailrace.kafka.errors import PURGED, is_fenced, is_retriable, translate
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_PARTITION, HEADER_PIPELINE, HEADER_TOPIC, PREFIX
from tailrace.kafka.rights import Operation, Right, on_groups, on_topic, on_transactions

_TIMEOUT_MS = 120_000  # a killed replay may hold up the source topic's readers this long
_PART = 30.0  # seconds until a transaction is committed, and another one begun; the commit takes time, too
_LIMIT = 60.0
_METADATA = 4000  # bytes; the broker takes 4096
_ANY_SIZE = 1_000_000_000  # the topic decides how large a record may be


@dataclass(frozen=True)
class Marks:
    """What was sent of one partition: all before an offset, and some ranges (both ends included) beyond it."""

    before: int = 0
    beyond: tuple[tuple[int, int], ...] = ()

    def __contains__(self, offset: int) -> bool:
        return offset < self.before or any(first <= offset <= last for first, last in self.beyond)

    @property
    def metadata(self) -> str:
        """The ranges in the form committed with the offset."""
        return ",".join(f"{first}-{last}" for first, last in self.beyond)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Self:
        """Parse the marks from a committed offset; empty if nothing is committed."""
        if offset < 0:
            return cls()
        try:
            pairs = [each.split("-") for each in (metadata or "").rstrip("\0").split(",") if each]
            return cls(offset, tuple((int(first), int(last)) for first, last in pairs))
        except ValueError:
            raise KafkaFailed(
                f"the marks of earlier replays cannot be read: {metadata!r} at offset {offset}",
                kept="nothing was sent",
                then="the group's offsets were set by another tool; reset them with kafka-consumer-groups.sh",
            ) from None

    def after(self, offsets: Iterable[int], sent: Callable[[int], bool]) -> Marks:
        """Return the marks with `sent` added; `offsets` are those of the partition's records, in order.

        Another replay may have sent records that arrived after they were listed: ranges behind the list are kept.
        """
        before, ranges, end = self.before, list[list[int]](), -1
        gapless, joined = True, False  # every record so far was sent; the previous one was, behind one that was not
        for offset in offsets:
            done = offset in self or sent(offset)
            if not done:
                gapless = False
            elif gapless:
                before = max(before, offset + 1)
            elif joined:
                ranges[-1][1] = offset
            else:
                ranges.append([offset, offset])
            joined, end = done and not gapless, offset
        for first, last in self.beyond:
            if first > end:
                ranges.append([first, last])
            elif last > end and gapless:
                before = last + 1
            elif last > end:
                ranges[-1][1] = last
        return Marks(before, tuple((first, last) for first, last in ranges))


class Home(NamedTuple):
    """Where to send a record; the partition is known only if it goes back to its source."""

    topic: str
    partition: int | None


@dataclass(frozen=True)
class Selection:
    """The records of a rejected topic to replay, and all offsets in the topic, which the marks need."""

    wanted: Mapping[Place, Home]
    homeless: Mapping[Place, bool]  # wanted too, but without --to: outputs (true), and records without a source
    offsets: Mapping[int, list[int]]
    pipelines: frozenset[str]

    @property
    def topics(self) -> set[str]:
        """The topics to send to."""
        return {each.topic for each in self.wanted.values()}

    def pipeline(self) -> str:
        """Return the one pipeline the records belong to, which is part of the marks' name."""
        if len(self.pipelines) != 1:
            raise OptionRefused(
                f"the topic holds rejected records of {len(self.pipelines)} pipelines: {sorted(self.pipelines)}",
                kept="nothing was sent",
                then="name the pipeline's FILE instead of --topic",
            )
        return next(iter(self.pipelines))

    def without(self, marks: Mapping[int, Marks]) -> Selection:
        """Return the selection without the records replayed before."""
        new = {place: home for place, home in self.wanted.items() if place.offset not in marks[place.partition]}
        return replace(self, wanted=new)

    def marks(self, before: Mapping[int, Marks], partitions: int, last: Mapping[int, int]) -> dict[int, Marks]:
        """Return the marks after sending the wanted records up to the `last` offset of each partition.

        They are for every partition, so that none of them expires.
        """

        def sent(number: int) -> Callable[[int], bool]:
            until = last.get(number, -1)
            return lambda offset: offset <= until and Place(number, offset) in self.wanted

        return {
            number: before.get(number, Marks()).after(self.offsets.get(number, ()), sent(number))
            for number in range(partitions)
        }

    def outgoing(self, records: Iterable[Message], known: Mapping[str, int]) -> Iterator[tuple[Message, Home]]:
        """Yield the wanted records and their destinations; `known` is each topic's partition count."""
        for message in records:
            home = self.wanted.get(Place(message.partition, message.offset))
            if home is not None:
                there = home.partition is not None and home.partition < known[home.topic]
                yield message, home if there else Home(home.topic, None)


def select(records: Iterable[Message], wanted: Callable[[Message], bool], to: str | None) -> Selection:
    """Choose the records to replay, without keeping their bytes, which may be large."""
    chosen: dict[Place, Home] = {}
    homeless: dict[Place, bool] = {}
    offsets: dict[int, list[int]] = {}
    pipelines: set[str] = set()
    for message in records:
        place = Place(message.partition, message.offset)
        offsets.setdefault(place.partition, []).append(place.offset)
        pipelines.update(filter(None, [message.text(HEADER_PIPELINE)]))
        if wanted(message):
            source = None if is_output(message) else message.text(HEADER_TOPIC)
            topic = to or source
            if topic is None:
                homeless[place] = is_output(message)
            else:
                partition = number(message.text(HEADER_PARTITION)) if topic == source else None
                chosen[place] = Home(topic, partition)
    return Selection(chosen, homeless, offsets, frozenset(pipelines))


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
        base = client_options(kafka)
        self._consumer = Consumer(base | {"group.id": self._name, "enable.auto.commit": False})
        self._producer = Producer(
            base
            | {
                "transactional.id": self._name,
                "transaction.timeout.ms": _TIMEOUT_MS,
                "partitioner": "murmur2_random",
                "message.max.bytes": _ANY_SIZE,
                "linger.ms": 5,
            }
        )
        self._partitions = partitions
        self._error: KafkaException | None = None
        self._homes: set[str] = set()
        self._marked = 0  # records of transactions that are committed
        self._begun = 0.0  # when the open transaction began
        self._due = 0.0  # when it is to be committed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def marks(self) -> dict[int, Marks]:
        """Fence every other replay, settle a transaction that one left open, and read what was sent so far."""
        doing = f"taking over the transactional id {self._name!r}"
        persist(lambda: self._producer.init_transactions(_LIMIT), doing, rights=self._rights)
        places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
        found = committed(self._consumer, places, f"reading the marks of {self._name!r}", self._rights)
        return {each.partition: Marks.read(each.offset, each.metadata) for each in found}

    def send(self, messages: Iterable[tuple[Message, Home]], selection: Selection, before: Mapping[int, Marks]) -> None:
        """Send the messages, which are those of the selection; fail if some of them no longer exist."""
        ends = {place: offsets[-1] for place, offsets in selection.offsets.items()}
        place, most = max(
            selection.marks(before, self._partitions, ends).items(), key=lambda each: len(each[1].metadata)
        )
        if len(most.metadata) > _METADATA:
            raise OptionRefused(
                f"the records to replay form {len(most.beyond)} ranges of partition {place}, too many to mark",
                kept="nothing was sent",
                then="replay fewer at once, the oldest first, or use --all",
            )
        last: dict[int, int] = {}
        sent = 0
        try:
            for message, home in messages:
                if sent == self._marked:
                    self._begin()
                self._produce(message, home)
                last[message.partition] = message.offset
                sent += 1
                if time.monotonic() >= self._due:
                    self._finish(selection.marks(before, self._partitions, last), sent)
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

    def _begin(self) -> None:
        self._begun = time.monotonic()
        self._due = self._begun + _PART
        self._producer.begin_transaction()

    def _finish(self, marks: Mapping[int, Marks], sent: int) -> None:
        """Commit the open transaction with these marks, unless one of them is too long: a later one may fit."""
        if any(len(each.metadata) > _METADATA for each in marks.values()):
            self._due = time.monotonic() + _PART
            return
        self._serve(lambda: self._producer.flush(_LIMIT))
        offsets = [TopicPartition(self._topic, number, mark.before, mark.metadata) for number, mark in marks.items()]
        group = self._consumer.consumer_group_metadata()
        add_offsets(self._producer, offsets, group, _LIMIT, "adding the marks")
        self._commit()
        self._marked = sent

    def _produce(self, message: Message, home: Home) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value) for name, value in message.headers if not name.startswith(PREFIX)
        ]
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
            spent, limit = time.monotonic() - self._begun, _TIMEOUT_MS / 1000
            if spent > limit:
                return KafkaFailed(
                    f"a transaction of the replay stayed open for {spent:.0f} s, and the brokers end one after "
                    f"{limit:g} s",
                    kept=self._kept,
                    then="tailrace doctor FILE, then repeat the command, with fewer records if it happens again",
                )
            return KafkaFailed(
                f"another replay has taken over the transactional id {self._name!r}",
                kept=self._kept,
                then="repeat the command once the other one has ended",
            )
        doing = f"replaying {self._topic!r}"
        rights = [*(on_topic(Operation.WRITE, topic) for topic in sorted(self._homes)), *self._rights]
        return translate(self._error or error, doing, kept=self._kept, rights=rights)
