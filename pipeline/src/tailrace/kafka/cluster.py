"""Requests to the brokers from the driver and the tools: topics, offsets, and the members of groups."""

from __future__ import annotations

import concurrent.futures
import difflib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewTopic as NewTopic  # type: ignore[attr-defined]
from confluent_kafka.admin import OffsetSpec as OffsetSpec  # type: ignore[attr-defined]

from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka import reach
from tailrace.kafka.clients import (
    ANSWER_LIMIT,
    LONGEST_REQUEST,
    SHORT_TRY,
    TopicPartitions,
    address,
    answered,
    client_options,
    persist,
)
from tailrace.kafka.errors import STRANGER, UNKNOWN_TOPIC, code_of, denied, is_denied, is_retriable, stranger, translate
from tailrace.kafka.handles import handle
from tailrace.kafka.leaders import CUT_OFF, leaders_in
from tailrace.kafka.rights import Operation, on_group, on_topic

_SPREAD = 3.0  # seconds within which every broker learns of a new topic
_KEPT = "everything that was delivered; nothing more was read"
_MISSES = 2  # unanswered requests for offsets in a row, after which the client is replaced


def _listener(refusals: list[KafkaError]) -> Callable[[KafkaError], None]:
    def heard(error: KafkaError) -> None:
        if error.code() in STRANGER:
            refusals.append(error)

    return heard


class Cluster:
    """An admin client for the driver and the tools."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._refusals: list[KafkaError] = []
        self._missed = 0  # requests for offsets since the last one that was answered
        self._admin = self._client()

    def _client(self) -> AdminClient:
        try:
            return AdminClient(client_options(self._kafka) | {"error_cb": _listener(self._refusals)})
        except KafkaException as error:
            raise errors.ConfigInvalid(
                f"the Kafka client refuses kafka.options: {error.args[0].str()}",
                kept="nothing was read or written",
                then="correct the option that it names, or set sasl.mechanism if it is missing; "
                "`tailrace explain kafka.options` lists the options",
            ) from error

    def _replace(self) -> None:
        """Use a new client from now on, which lists the topics before it is asked for offsets."""
        self._admin, self._missed = self._client(), max(self._missed, _MISSES)

    @property
    def admin(self) -> AdminClient:
        """The admin client itself, for requests that only one module makes."""
        return self._admin

    def topics(self) -> dict[str, int]:
        """Return every topic, with its number of partitions."""
        address = self._kafka.bootstrap_servers
        try:
            listed = self._admin.list_topics(timeout=ANSWER_LIMIT).topics
        except KafkaException as error:
            self._admin.poll(0)  # the client reports the reason only here
            if self._refusals:
                what = f"the brokers at {address} do not let us in: {self._refusals[-1].str()}"
                raise stranger(what, "nothing was read or written") from error
            found = reach.findings(self._kafka)
            if any(each.connects for each in found):
                # Brokers of which the controller hears nothing, as after all paused, are not listed. librdkafka
                # forgets a broker that is not listed, and a client that knows none never asks again.
                self._replace()
            raise errors.BrokerUnreachable(
                f"no broker answered at {address} within {ANSWER_LIMIT:.0f} s ({'; '.join(map(str, found))})",
                kept="nothing was read or written",
                then=f"{reach.advice(found)}, then: tailrace doctor FILE",
            ) from error
        self._admin.poll(0)
        self._refusals.clear()  # this answer is newer
        return {name: len(topic.partitions) for name, topic in listed.items() if topic.error is None}

    def require(self, wanted: Iterable[str], what: str, to: Operation = Operation.READ) -> dict[str, int]:
        """Return each topic's partition count; an error names the closest existing topic, or the missing right."""
        known = self.topics()
        for topic in wanted:
            if topic not in known:
                if self.hides(topic):
                    raise denied(
                        f"{what} {topic!r} does not exist, or may not be described",
                        [on_topic(to, topic)],
                        "nothing was read or written",
                    )
                near = difflib.get_close_matches(topic, known, n=1)
                raise errors.TopicUnknown(
                    f"{what} {topic!r} does not exist at {self._kafka.bootstrap_servers}"
                    + (f"; the closest name is {near[0]!r}" if near else ""),
                    kept="nothing was read or written",
                    then=f"correct the name, or create it: tailrace kafka topic create FILE {topic}",
                )
        return {topic: known[topic] for topic in wanted}

    def hides(self, topic: str) -> bool:
        """Return whether we may not know if a topic exists."""
        try:
            # Do not request its metadata: if brokers create topics automatically, that would create it.
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_LIMIT)
            answered(asked[topic], ANSWER_LIMIT, f"describing {topic!r}")
        except KafkaException as error:
            return is_denied(error)
        return False

    def matching(self, pattern: str) -> dict[str, int]:
        """Return the topics whose full name matches, as Spark's subscribePattern matches them."""
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
        """Create one of Tailrace's own topics unless it exists; return its number of partitions."""
        known = self.topics()
        if topic in known:
            return known[topic]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(settings))
        try:
            self._create(new)
        except KafkaException as error:
            if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                lacking = [on_topic(Operation.CREATE, topic)]
                if self.hides(topic):  # it may exist
                    lacking.insert(0, on_topic(to, topic))
                doing = f"creating the topic {topic!r} with {partitions} partitions"
                raise translate(error, doing, kept="nothing was read or written", rights=lacking) from error
            if self.hides(topic):
                what = f"topic {topic!r} exists and may not be described"
                raise denied(what, [on_topic(to, topic)], "nothing was read or written") from error
        end = time.monotonic() + ANSWER_LIMIT
        while topic not in (known := self.topics()):
            if time.monotonic() > end:
                raise errors.TopicUnknown(
                    f"topic {topic!r} was created, but no broker shows it after {ANSWER_LIMIT:.0f} s"
                )
            time.sleep(0.05)
        return known[topic]

    def _create(self, new: NewTopic) -> None:
        """Create a topic; if the answer was lost, ask again, which may learn that the topic exists."""
        end = time.monotonic() + ANSWER_LIMIT
        while True:
            try:
                answered(self._admin.create_topics([new])[new.topic], ANSWER_LIMIT, f"creating {new.topic!r}")
                return
            except KafkaException as error:
                if not is_retriable(error) or time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def members(self, group: str) -> list[tuple[str, str]]:
        """Return the client id and host of each member of a consumer group; empty if there is no such group."""

        def ask() -> list[tuple[str, str]]:
            # In short tries: brokers that never had a group first create its topic, and answer only the next request.
            # If one expires while librdkafka looks for the coordinator, the process aborts when that is found.
            asked = self._admin.describe_consumer_groups([group], request_timeout=LONGEST_REQUEST)
            try:
                found = answered(asked[group], SHORT_TRY, f"describing {group!r}")
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
        """Return the earliest or latest offset of each partition."""
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        if not asked:
            return {}
        begun = time.monotonic()
        if self._missed >= _MISSES:
            # The client is new and must know the leaders: while it looks them up, another thread's answer may free the
            # request too early. And while no broker answers, requests do not pile up in it.
            self.topics()
        while True:
            try:
                return self._offsets(asked, level)
            except KafkaException as error:
                spent = time.monotonic() - begun
                if spent > ANSWER_LIMIT or not self._passing(error, asked, spent):
                    topics = sorted({each.topic for each in asked})
                    rights = [on_topic(Operation.DESCRIBE, topic) for topic in topics]
                    raise translate(error, f"asking for the offsets of {', '.join(topics)}", rights=rights) from error
                time.sleep(0.05)
                self.topics()  # this refreshes the metadata in which the client looks up leaders

    def _passing(self, error: KafkaException, asked: Iterable[TopicPartition], spent: float) -> bool:
        """Return whether the next request for offsets may succeed, after so many seconds of them."""
        if code_of(error) in UNKNOWN_TOPIC:
            # A broker learns of a new topic a moment after the one that showed it; and either may be asked what there
            # is. One that is gone is shown by none.
            known = self.topics()
            return spent < _SPREAD or all(each.partition < known.get(each.topic, 0) for each in asked)
        # A partition that is new, or has just lost its leader, briefly has no offset.
        return is_retriable(error) or code_of(error) == KafkaError._NOENT

    def _offsets(self, asked: dict[TopicPartition, OffsetSpec], level: IsolationLevel) -> TopicPartitions:
        # librdkafka 2.16 looks up leaders in this thread. If the request expires meanwhile, as in a suspended process,
        # its own thread frees the request too, and the process aborts. So the limit is long and only our wait is short.
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=LONGEST_REQUEST)
        if concurrent.futures.wait(futures.values(), SHORT_TRY).not_done:
            self._missed += 1
            if self._missed % _MISSES == 0:
                self._replace()  # this client may wait for a broker that has gone; a new one does not know it
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer within {SHORT_TRY:.0f} s"))
        self._missed = 0
        found = {(place.topic, place.partition): future.result().offset for place, future in futures.items()}
        if OFFSET_INVALID in found.values():  # a leader was killed during the request: reported without an error
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "a leader is away"))
        return found

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> TopicPartitions:
        """Return the first offset of each partition."""
        return self.offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, partitions: Iterable[tuple[str, int]], committed: bool = False) -> TopicPartitions:
        """Return the end of each partition; with `committed`, stop before the first open transaction."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self.offsets(partitions, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]

    def anew(self) -> Cluster:
        """Return another client of the same brokers, which has heard of nothing yet."""
        return Cluster(self._kafka)

    def addresses(self) -> dict[int, str]:
        """Return each broker's address."""
        listed = persist(lambda: self._admin.list_topics(timeout=ANSWER_LIMIT).brokers, "looking for the brokers")
        return {number: address(str(each.host), each.port) for number, each in listed.items()}

    def agreed_latest(self, partitions: Collection[tuple[str, int]]) -> TopicPartitions:
        """Return the end of each partition's log, as the leader says on which the brokers agree.

        One that is cut off from the others takes itself for the leader, and this client may have learned it from there
        (docs/decisions/0041). So the clients are new, and the leader is asked by one that knows no other address.
        """
        asking = self.anew()
        instance = handle(asking.admin)
        if instance is None:  # this confluent-kafka cannot ask one broker
            return asking.latest(partitions)
        brokers = asking.addresses()
        led: dict[int, list[tuple[str, int]]] = {}
        if not partitions:
            return {}
        try:
            said = leaders_in(instance, brokers, sorted(partitions), SHORT_TRY)
        except KafkaException as error:
            topics = sorted({topic for topic, _ in partitions})
            raise translate(error, f"asking which brokers lead {', '.join(topics[:5])}") from error
        for (topic, number), found in said.items():
            leader = found.agreed(f"{topic}-{number}", _KEPT, CUT_OFF)
            if leader is None:
                raise errors.KafkaFailed(f"no broker knows {topic}-{number}", kept=_KEPT, then=CUT_OFF)
            led.setdefault(leader, []).append((topic, number))
        ends: TopicPartitions = {}
        for leader, theirs in led.items():
            ends |= Cluster(self._kafka.model_copy(update={"bootstrap_servers": brokers[leader]})).latest(theirs)
        return ends
