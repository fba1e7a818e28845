"""The doctor's checks of the logs that a pipeline writes: how many copies there are, and whether a transaction hangs.

What Kafka has acknowledged must last. And Kafka 4.3 and 4.4 lose a transaction's end in each partition that has no
leader just then (KAFKA-20734): its records stay open until the next transaction of the same sink partition, which then
decides about both. The brokers tell nobody but the readers, who wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export them
    ConfigResource,
    ResourceType,
)

from tailrace.admin.checks import Check, ok, warn
from tailrace.admin.replay import group as replay_group
from tailrace.config import Delivery, Pipeline
from tailrace.errors import TailraceError
from tailrace.kafka.clients import ANSWER_LIMIT, TopicPartitions, answered, client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.pending_offsets import available, stored
from tailrace.progress.lease import running
from tailrace.progress.marker import markers_group, offsets_group
from tailrace.progress.plan import Place
from tailrace.progress.positions import listed, named

T = TypeVar("T")

_COPIES, _IN_SYNC = 3, 2
_INTERNAL = ("__consumer_offsets", "__transaction_state")  # markers, and which transactions are open
_SOON = 3.0  # seconds in which a transaction ends that another pipeline has open just now
_PAUSE = 0.2


def logs(pipeline: Pipeline) -> Iterator[Check]:
    """Run each check in turn."""
    cluster = Cluster(pipeline.kafka)
    try:
        yield _copies(pipeline, cluster)
        if pipeline.sink.delivery is Delivery.EXACTLY_ONCE:
            yield _transactions(pipeline, cluster)
    except (TailraceError, KafkaException) as error:
        what = error.what if isinstance(error, TailraceError) else error.args[0].str()
        yield warn("logs", what, "tailrace doctor FILE, once the brokers answer")


def _copies(pipeline: Pipeline, cluster: Cluster) -> Check:
    name = "copies"
    told = cluster.admin.list_topics(timeout=ANSWER_LIMIT)
    copies = {topic: [each.replicas for each in found.partitions.values()] for topic, found in told.topics.items()}
    # A broker that is away is not listed, and still named by what it keeps.
    brokers = {*told.brokers, *(number for every in copies.values() for each in every for number in each)}
    if len(brokers) == 1:
        return ok(name, "one broker has all; topics cannot have more copies")
    wanted = [topic for topic in (*_written(pipeline), pipeline.ledger.topic, *_INTERNAL) if copies.get(topic)]
    fewest = {topic: min(map(len, copies[topic])) for topic in wanted}
    single = [topic for topic in wanted if fewest[topic] < _IN_SYNC]
    if single:
        found = (
            f"{listed(single)}: one copy. If its broker is away while a transaction ends, Kafka 4.3 and 4.4 lose that "
            "end, and records with it; if its disk is lost, all of it is"
        )
        return warn(name, found, f"give them {_COPIES} replicas, with min.insync.replicas={_IN_SYNC}")
    alone = [topic for topic in wanted if topic not in _INTERNAL and _in_sync(cluster, topic) < _IN_SYNC]
    if alone:
        found = f"{listed(alone)}: brokers acknowledge what only one of them has (min.insync.replicas=1)"
        return warn(name, found, f"set min.insync.replicas={_IN_SYNC} on {listed(alone)}")
    return ok(name, f"{min(fewest.values(), default=_COPIES)} of each topic that is written, or more")


def _in_sync(cluster: Cluster, topic: str) -> int:
    """Return the setting; without the right to see it, it counts as good: the check of messages' sizes names that."""
    asked = cluster.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=ANSWER_LIMIT)
    [future] = asked.values()
    try:
        found = answered(future, ANSWER_LIMIT, f"describing {topic}").get("min.insync.replicas")
    except KafkaException:
        return _IN_SYNC
    return _IN_SYNC if found is None or found.value is None else int(found.value)


def _written(pipeline: Pipeline) -> list[str]:
    return list(dict.fromkeys((*pipeline.sink.named, pipeline.rejected_topic)))


def _transactions(pipeline: Pipeline, cluster: Cluster) -> Check:
    name = "hanging"
    if running(cluster, pipeline.pipeline):
        return ok(name, "the pipeline is running, and has transactions open")
    counts = cluster.topics()
    ledger = [(pipeline.ledger.topic, number) for number in range(counts.get(pipeline.ledger.topic, 0))]
    written = [(topic, number) for topic in _written(pipeline) for number in range(counts.get(topic, 0))]
    read = [
        (topic, number)
        for topic in (cluster.matching(pipeline.source.pattern) if pipeline.source.pattern else pipeline.source.topics)
        for number in range(counts.get(topic, 0))
    ]
    refused = [(pipeline.rejected_topic, number) for number in range(counts.get(pipeline.rejected_topic, 0))]
    end = time.monotonic() + _SOON
    held = _lasting(partial(_held, cluster, cluster.latest([*written, *ledger])), end)
    groups = {
        offsets_group(pipeline.pipeline): read,
        markers_group(pipeline.pipeline): ledger,
        replay_group(pipeline.pipeline): refused,
    }
    pending = [group for group in groups if _lasting(partial(_pending, pipeline, group, groups[group]), end)]
    if not held and not pending:
        return ok(name, "no transaction is open in what the pipeline writes")
    where = [f"{named(place)} from offset {held[place]} on" for place in sorted(held)]
    where += [f"the offsets of the group {each}" for each in pending]
    topic = f"{min(held)[0]} --partition {min(held)[1]}" if held else _INTERNAL[0]
    secured = " --command-config FILE" if pipeline.kafka.options else ""
    return warn(
        name,
        f"a transaction is open: {listed(where)}; it is another producer's, or of a driver that was killed just now, "
        "or the brokers have lost its end",
        f"kafka-transactions.sh --bootstrap-server {pipeline.kafka.bootstrap_servers}{secured} find-hanging "
        f"--max-transaction-timeout 0 --topic {topic}; tailrace explain TR-207",
    )


def _lasting(ask: Callable[[], T], end: float) -> T:
    """Return what is open now and still so a moment later."""
    while (found := ask()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return found


def _held(cluster: Cluster, tops: TopicPartitions) -> TopicPartitions:
    """Return where readers cannot come to these ends of logs, and how far they come."""
    return {place: at for place, at in cluster.latest(tops, committed=True).items() if at < tops[place]}


def _pending(pipeline: Pipeline, group: str, places: Sequence[Place]) -> bool:
    """Return whether a transaction is about to change some of a group's offsets."""
    consumer = Consumer({**client_options(pipeline.kafka), "group.id": group, "enable.auto.commit": False})
    try:
        if not places or not available(consumer):
            return False
        asked = [TopicPartition(*place) for place in places]
        return any(each.pending for each in stored(consumer, group, asked, ANSWER_LIMIT))
    finally:
        consumer.close()
