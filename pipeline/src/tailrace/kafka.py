"""How librdkafka's clients are configured and asked, and what Kafka's errors mean here.

Spark's source reads with Java's client; `javakafka` translates the connection's options for it.
"""

from __future__ import annotations

import concurrent.futures
import difflib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as NewTopic  # type: ignore[attr-defined]
from confluent_kafka.admin import OffsetSpec as OffsetSpec  # type: ignore[attr-defined]

from tailrace import errors
from tailrace.config import Kafka
from tailrace.rights import Operation, Resource, Right, on_group, on_topic

T = TypeVar("T")
TopicPartitions = dict[tuple[str, int], int]

ANSWER_LIMIT = 15.0  # seconds until a broker that does not answer is unreachable
SHORT_TRY = 5.0

_RETRIABLE = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,  # of a leader that is so new that it does not know yet how far it may tell
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,  # the client knows an older leader, or a newer one than the broker does
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
)
# Reports of records that were thrown away because their transaction had failed already: that error says more.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Resource.TOPIC,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Resource.GROUP,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Resource.CLUSTER,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Resource.TRANSACTIONAL_ID,
}
_STRANGER = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
_UNREACHABLE = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT})
UNKNOWN_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


def client_options(kafka: Kafka) -> dict[str, Any]:
    """The options of the connection for a client of librdkafka."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        # Undocumented, but without it a new producer waits half a second in one start of four.
        "enable.sparse.connections": False,
        "reconnect.backoff.ms": 10,
        # Otherwise, when all connections are lost at once, librdkafka 2.16.0 forgets its brokers and the requests that
        # wait for them: a transaction that was adding its marker then waits for ever, whatever its limit.
        "metadata.recovery.strategy": "none",
        "log_level": 2,
        **kafka.options,
    }


def code_of(error: KafkaException | KafkaError) -> int:
    """Kafka's number for an error."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    return int(cause.code()) if isinstance(cause, KafkaError) else KafkaError._FAIL


def is_fenced(error: KafkaException) -> bool:
    """Whether a newer owner of the transactional id exists."""
    return code_of(error) in _FENCED


def is_retriable(error: KafkaException) -> bool:
    """Whether the same question may be answered a moment later."""
    return code_of(error) in _RETRIABLE


def is_denied(error: KafkaException | KafkaError) -> bool:
    """Whether a right is lacking."""
    return code_of(error) in _DENIED


def translate(
    error: KafkaException | KafkaError, doing: str, *, kept: str = "", rights: Sequence[Right] = ()
) -> errors.TailraceError:
    """Kafka's error in Tailrace's words; `doing` says what was tried, with its values, and `rights` what that takes."""
    code = code_of(error)
    cause = error.args[0] if isinstance(error, KafkaException) else error
    name = cause.name() if isinstance(cause, KafkaError) else type(cause).__name__
    what = f"{doing}: {name} ({cause.str() if isinstance(cause, KafkaError) else cause})"
    if code in _DENIED:
        return denied(what, [right for right in rights if right.resource is _DENIED[code]], kept)
    if code in _STRANGER:
        return stranger(what, kept)
    if code in UNKNOWN_TOPIC:
        return errors.TopicUnknown(what, kept=kept, then="create the topic, or correct its name")
    if code in _TOO_LARGE:
        return errors.RecordTooLarge(what, kept=kept, then="raise message.max.bytes and the topic's max.message.bytes")
    if code in _UNREACHABLE:
        return errors.BrokerUnreachable(what, kept=kept, then="tailrace doctor FILE")
    if code == KafkaError.INVALID_TIMESTAMP:
        then = "set the clock of this machine right: the brokers refuse records from too far in the future or the past"
        return errors.KafkaFailed(what, kept=kept, then=then)
    return errors.KafkaFailed(what, kept=kept, then="tailrace doctor FILE")


def denied(what: str, rights: Sequence[Right], kept: str = "") -> errors.NotAuthorized:
    """The error that names what the principal lacks, and how it is granted."""
    if not rights:
        return errors.NotAuthorized(what, kept=kept, then="tailrace doctor FILE")
    lacking = " or ".join(map(str, rights))
    return errors.NotAuthorized(f"{what}; lacking: {lacking}", kept=kept, then=rights[0].command)


def stranger(what: str, kept: str = "") -> errors.NotAuthenticated:
    """The error of a client that was not let in at all."""
    return errors.NotAuthenticated(
        what, kept=kept, then="check security.protocol, sasl.* and ssl.* of kafka.options, then: tailrace doctor FILE"
    )


def committed(
    consumer: Consumer, places: Sequence[TopicPartition], doing: str, rights: Sequence[Right], limit: float = 60.0
) -> list[TopicPartition]:
    """A group's offsets. Asked in short tries: that the group is denied, the client tells between them only."""

    def ask() -> list[TopicPartition]:
        try:
            return consumer.committed(list(places), timeout=min(SHORT_TRY, limit))
        except KafkaException:
            heard = consumer.poll(0)
            problem = heard.error() if heard is not None else None
            if problem is not None and is_denied(problem):
                raise KafkaException(problem) from None
            raise

    return persist(ask, doing, limit, rights)


def _listener(refusals: list[KafkaError]) -> Callable[[KafkaError], None]:
    def heard(error: KafkaError) -> None:
        if error.code() in _STRANGER:
            refusals.append(error)

    return heard


def within(limit: float, doing: str, act: Callable[[], T]) -> T:
    """Do what librdkafka may hold beyond any limit; after ours it is left alone, for it cannot be taken back.

    Adding offsets to a transaction waits for the group's coordinator, whatever time it is given
    (librdkafka's issue 5456). Where that broker has gone it may wait until some other connection changes (5511).
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="tailrace-within", daemon=True).start()
    try:
        return answer.result(limit)
    except concurrent.futures.TimeoutError:
        what = f"{doing}: no answer within {limit:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, what)) from None


def add_offsets(producer: Producer, places: Sequence[TopicPartition], group: object, limit: float, doing: str) -> None:
    """Put a group's offsets into a transaction. Where a record breaks it meanwhile, the error is that record's.

    librdkafka says then at first only that it is in the wrong state, and how it came there when it is asked again.
    """

    end = time.monotonic() + limit

    def add() -> None:
        try:
            producer.send_offsets_to_transaction(list(places), group, limit)
        except KafkaException as error:
            # After the limit nobody waits for the answer: this must not touch whatever the producer does by then.
            if code_of(error) == KafkaError._STATE and time.monotonic() < end:
                producer.send_offsets_to_transaction(list(places), group, limit)
            raise

    within(limit, doing, add)


def persist(question: Callable[[], T], doing: str, limit: float = ANSWER_LIMIT, rights: Sequence[Right] = ()) -> T:
    """Ask until there is an answer, while the refusals are of the kind that passes."""
    end = time.monotonic() + limit
    while True:
        try:
            return question()
        except KafkaException as error:
            if not is_retriable(error) or time.monotonic() > end:
                raise translate(error, doing, rights=rights) from error
            time.sleep(0.02)


class Cluster:
    """What the driver and the tools ask the brokers."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._refusals: list[KafkaError] = []
        self._admin = self._client()

    def _client(self) -> AdminClient:
        return AdminClient(client_options(self._kafka) | {"error_cb": _listener(self._refusals)})

    @property
    def admin(self) -> AdminClient:
        """The admin client, for the questions of a single module."""
        return self._admin

    def topics(self) -> dict[str, int]:
        """Every topic, with its number of partitions."""
        address = self._kafka.bootstrap_servers
        try:
            found = self._admin.list_topics(timeout=ANSWER_LIMIT).topics
        except KafkaException as error:
            self._admin.poll(0)  # why, the client tells only here
            if self._refusals:
                what = f"the brokers at {address} do not let us in: {self._refusals[-1].str()}"
                raise stranger(what, "nothing was read or written") from error
            raise errors.BrokerUnreachable(
                f"no broker answered at {address} within {ANSWER_LIMIT:.0f} s ({error.args[0].str()})",
                kept="nothing was read or written",
                then="check kafka.bootstrap.servers, then: tailrace doctor FILE",
            ) from error
        return {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}

    def require(self, wanted: Iterable[str], what: str, to: Operation = Operation.READ) -> dict[str, int]:
        """The partitions of each wanted topic; an error names the nearest that exists, or the right that is lacking."""
        known = self.topics()
        for topic in wanted:
            if topic not in known:
                if self.hides(topic):
                    raise denied(
                        f"{what} {topic!r} may not be seen, if it exists",
                        [on_topic(to, topic)],
                        "nothing was read or written",
                    )
                near = difflib.get_close_matches(topic, known, n=1)
                raise errors.TopicUnknown(
                    f"{what} {topic!r} does not exist at {self._kafka.bootstrap_servers}"
                    + (f"; the nearest is {near[0]!r}" if near else ""),
                    kept="nothing was read or written",
                    then="create the topic, or correct its name in the configuration",
                )
        return {topic: known[topic] for topic in wanted}

    def hides(self, topic: str) -> bool:
        """Whether the brokers do not tell us if a topic exists."""
        try:
            # Not by asking for its metadata: where brokers create topics by themselves, that would create it.
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_LIMIT)
            asked[topic].result(timeout=ANSWER_LIMIT)
        except KafkaException as error:
            return is_denied(error)
        return False

    def matching(self, pattern: str) -> dict[str, int]:
        """The topics whose whole name matches, as Spark's subscribePattern matches them."""
        compiled = re.compile(pattern)
        return {topic: count for topic, count in self.topics().items() if compiled.fullmatch(topic)}

    def ensure(
        self,
        topic: str,
        partitions: int,
        replication: int,
        settings: Mapping[str, str],
        to: Operation = Operation.WRITE,
    ) -> int:
        """Create a topic that is Tailrace's own, unless it exists; its number of partitions."""
        known = self.topics()
        if topic in known:
            return known[topic]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(settings))
        try:
            self._admin.create_topics([new])[topic].result(timeout=ANSWER_LIMIT)
        except KafkaException as error:
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                lacking = [on_topic(Operation.CREATE, topic)]
                if self.hides(topic):  # it may be there
                    lacking.insert(0, on_topic(to, topic))
                doing = f"creating the topic {topic!r} with {partitions} partitions"
                raise translate(error, doing, kept="nothing was read or written", rights=lacking) from error
            if self.hides(topic):
                what = f"topic {topic!r} exists and may not be seen"
                raise denied(what, [on_topic(to, topic)], "nothing was read or written") from error
        end = time.monotonic() + ANSWER_LIMIT
        while topic not in (known := self.topics()):
            if time.monotonic() > end:
                raise errors.TopicUnknown(
                    f"topic {topic!r} was created, but no broker shows it after {ANSWER_LIMIT:.0f} s"
                )
            time.sleep(0.05)
        return known[topic]

    def members(self, group: str) -> list[tuple[str, str]]:
        """The client's name and the host of each member of a consumer group; none where there is no such group."""

        def ask() -> list[tuple[str, str]]:
            # In short tries: brokers that never had a group make its topic first, and answer only the next question.
            asked = self._admin.describe_consumer_groups([group], request_timeout=SHORT_TRY)
            try:
                found = asked[group].result(timeout=ANSWER_LIMIT)
            except KafkaException as error:
                if code_of(error) == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                raise
            return [(member.client_id, member.host) for member in found.members]

        return persist(ask, f"asking for the members of the group {group!r}", 4 * ANSWER_LIMIT, [on_group(group)])

    def offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> TopicPartitions:
        """The earliest or latest offset of each partition."""
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        if not asked:
            return {}
        end = time.monotonic() + ANSWER_LIMIT
        while True:
            try:
                return self._offsets(asked, level)
            except KafkaException as error:
                # A partition that is new, or whose leader has just gone, has none for a moment.
                if time.monotonic() > end or not (is_retriable(error) or code_of(error) == KafkaError._NOENT):
                    topics = sorted({each.topic for each in asked})
                    rights = [on_topic(Operation.DESCRIBE, topic) for topic in topics]
                    raise translate(error, f"asking for the offsets of {', '.join(topics)}", rights=rights) from error
                time.sleep(0.05)
                self.topics()  # the client looks its leaders up in what it has seen last

    def _offsets(self, asked: dict[TopicPartition, OffsetSpec], level: IsolationLevel) -> TopicPartitions:
        end = time.monotonic() + SHORT_TRY
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=SHORT_TRY)
        try:
            found = {
                (place.topic, place.partition): future.result(end + 1 - time.monotonic()).offset
                for place, future in futures.items()
            }
        except concurrent.futures.TimeoutError:
            # Where a broker has gone, librdkafka may wait for it beyond its own limit. A new client does not know it.
            self._admin = self._client()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer, beyond the client's limit")) from None
        if OFFSET_INVALID in found.values():  # a leader that was killed under the question: told without any error
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a leader is away"))
        return found

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> TopicPartitions:
        """The first offset of each partition."""
        return self.offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        """The offset after the last record of each partition; with `committed`, before what is in open transactions."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self.offsets(partitions, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]
