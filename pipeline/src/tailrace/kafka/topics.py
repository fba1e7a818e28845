"""Details of single topics: their settings, and the ids that distinguish topics of the same name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tailrace.errors import NotAuthorized, PlanOfAnother
from tailrace.kafka.clients import ANSWER_LIMIT, SHORT_TRY, answered, persist
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.described_topics import described
from tailrace.kafka.errors import UNKNOWN_TOPIC, denied, is_denied, translate
from tailrace.kafka.handles import handle
from tailrace.kafka.leaders import same_ids
from tailrace.kafka.rights import Operation, on_topic


def setting(cluster: Cluster, topic: str, name: str) -> str | None:
    """Return the setting of a topic that exists; None if the brokers do not tell it, or do not let us read it."""
    asked = [ConfigResource(ResourceType.TOPIC, topic)]

    def ask() -> str | None:
        [future] = cluster.admin.describe_configs(asked, request_timeout=SHORT_TRY).values()
        found = answered(future, ANSWER_LIMIT, f"describing {topic!r}").get(name)
        return None if found is None or found.value is None else str(found.value)

    try:
        # A broker learns of a new topic a moment after the one that showed it.
        return persist(ask, f"reading {name} of the topic {topic!r}", ANSWER_LIMIT, also=UNKNOWN_TOPIC)
    except NotAuthorized:
        return None


def topic_ids(admin: AdminClient, topics: Iterable[str], limit: float = ANSWER_LIMIT) -> dict[str, tuple[str, int]]:
    """Return each topic's id and its number of partitions; one that does not exist is left out."""
    found, hidden = by_name(admin, topics, limit)
    if hidden:
        rights = [on_topic(Operation.DESCRIBE, name) for name in sorted(hidden)]
        raise denied(f"asking for the ids of {', '.join(sorted(hidden)[:5])}", rights)
    return found


def completed(
    admin: AdminClient, ids: Mapping[str, str], topics: Iterable[str], known: Mapping[str, str]
) -> dict[str, str]:
    """Return these ids and those of more topics: as they are known, and otherwise as the brokers have them."""
    left = set(topics) - ids.keys()
    asked = topic_ids(admin, left - known.keys())
    found = {topic: name for topic, (name, _) in asked.items()}
    return {**ids, **found, **{topic: known[topic] for topic in left & known.keys()}}


def by_name(
    admin: AdminClient, topics: Iterable[str], limit: float = ANSWER_LIMIT
) -> tuple[dict[str, tuple[str, int]], frozenset[str]]:
    """Return the id and the number of partitions of each topic, and those topics that may not be described."""
    names = sorted(set(topics))
    if not names:
        return {}, frozenset()

    def ask() -> tuple[dict[str, tuple[str, int]], frozenset[str]]:
        found: dict[str, tuple[str, int]] = {}
        hidden = set()
        for topic in described(admin, names, SHORT_TRY):
            if topic.error and is_denied(KafkaError(topic.error)):
                hidden.add(topic.name)
            elif topic.error and topic.error not in UNKNOWN_TOPIC:
                raise KafkaException(KafkaError(topic.error))
            elif not topic.error:
                found[topic.name] = (topic.topic_id, topic.partitions)
        return found, frozenset(hidden)

    rights = [on_topic(Operation.DESCRIBE, name) for name in names]
    return persist(ask, f"asking for the ids of {', '.join(names[:5])}", limit, rights)


def agreed_ids(cluster: Cluster, topics: Collection[str]) -> dict[str, str]:
    """Return the ids of those topics on which the brokers agree that answer, which must be most of them."""
    names, asking = sorted(topics), cluster.anew()
    instance = handle(asking.admin)
    if instance is None:  # this confluent-kafka cannot ask one broker
        return {topic: name for topic, (name, _) in by_name(asking.admin, names)[0].items()}
    try:
        return same_ids(instance, asking.addresses(), names, SHORT_TRY)
    except KafkaException as error:
        raise translate(error, f"asking for the ids of {', '.join(names[:5])}") from error


def recreation(topics: Iterable[str], when: str, kept: str, then: str = "") -> PlanOfAnother:
    """Return the error for source topics that were deleted and created again, in which old offsets mean nothing."""
    names = sorted(topics)
    what = f"the source topic {', '.join(names)} was deleted and created again {when}"
    return PlanOfAnother(what, kept=kept, then=then or ways_on(names))


def ways_on(recreated: Iterable[str]) -> str:
    """Return how to continue with topics that were created again; the others' offsets stay as they are."""
    named = " ".join(f"--topic {topic}" for topic in sorted(recreated))
    return (
        "set source.on_data_loss: reset to read it from its beginning, or choose where to continue: "
        f"tailrace offsets reset FILE --to earliest {named}"
    )
