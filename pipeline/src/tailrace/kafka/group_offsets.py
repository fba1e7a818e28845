"""All offsets of another job's group, as the broker tells them on which the brokers agree that it has the group.

One that is cut off from the others goes on to answer for its groups, and a pipeline would begin in front of what the
job has read. Nobody may add to a group of another job to inform its broker (docs/decisions/0040). So each broker is
asked who has the group, as for the end of a log (docs/decisions/0041), by a client that knows no other address.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.config import Kafka
from tailrace.errors import KafkaError as NoAnswer
from tailrace.errors import NotAuthorized
from tailrace.kafka.clients import ANSWER_LIMIT, LONGEST_REQUEST, SHORT_TRY, answered, client_options, persist
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import code_of
from tailrace.kafka.leaders import CUT_OFF, Leaders
from tailrace.kafka.rights import Right, on_group

_AT_ONCE = 16  # brokers that are asked at the same time
_KEPT = "nothing was read or written"

Offsets = Mapping[tuple[str, int], TopicPartition]


def group_offsets(kafka: Kafka, group: str) -> Offsets:
    """Return the offsets of a group, none if there is no such group; raise KafkaFailed if the brokers do not agree."""
    addresses = Cluster(kafka).addresses()
    alone = {number: kafka.model_copy(update={"bootstrap_servers": each}) for number, each in addresses.items()}
    rights = [on_group(group)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        told = dict(zip(alone, pool.map(lambda each: _told(each, group, rights), alone.values()), strict=True))
    answers = {number: said for number, said in told.items() if not isinstance(said, NoAnswer)}
    silent = [said for said in told.values() if isinstance(said, NoAnswer)]
    denials = [each for each in silent if isinstance(each, NotAuthorized)]
    if denials or not answers:
        raise (denials or silent)[0]
    has = Leaders(len(alone), answers).agreed(f"the group {group!r}", _KEPT, CUT_OFF)
    return {} if has is None else _offsets(alone[has], group, rights)


def _told(kafka: Kafka, group: str, rights: list[Right]) -> int | NoAnswer | None:
    """Return which broker has the group, None if there is no such group; or the error if this one does not answer."""
    admin = AdminClient(client_options(kafka))

    def ask() -> int | None:
        # In short tries of long requests, as for the members of a group: librdkafka aborts if one expires.
        asked = admin.describe_consumer_groups([group], request_timeout=LONGEST_REQUEST)
        try:
            found = answered(asked[group], SHORT_TRY, f"asking which broker has the group {group!r}")
        except KafkaException as error:
            if code_of(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise
        return int(found.coordinator.id)

    try:
        return persist(ask, f"asking which broker has the group {group!r}", ANSWER_LIMIT, rights)
    except NoAnswer as error:
        return error


def _offsets(kafka: Kafka, group: str, rights: list[Right]) -> Offsets:
    """Return all offsets of a group, as a broker tells them that a client was given as the only one."""
    admin = AdminClient(client_options(kafka))

    def ask() -> list[TopicPartition]:
        asked = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], require_stable=True, request_timeout=LONGEST_REQUEST
        )
        found = answered(asked[group], SHORT_TRY, f"reading the offsets of {group}").topic_partitions or []
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return list(found)

    found = persist(ask, f"reading the offsets of {group}", 4 * ANSWER_LIMIT, rights)
    return {(each.topic, each.partition): each for each in found if each.offset >= 0}
