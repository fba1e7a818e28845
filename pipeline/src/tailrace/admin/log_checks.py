"""The doctor's checks of the logs that a pipeline writes: how many copies there are, and whether a transaction hangs.

What Kafka has acknowledged must last. And Kafka 4.3 and 4.4 lose a transaction's end in each partition that has no
leader just then (KAFKA-20734): its records stay open until the next transaction of the same sink partition, which then
decides about both. The brokers tell nobody but the readers, who wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export them
    ConfigResource,
    ResourceType,
)

from tailrace.admin.checks import Check, ok, warn
from tailrace.config import Delivery, Pipeline
from tailrace.errors import TailraceError
from tailrace.kafka.clients import ANSWER_LIMIT, TopicPartitions, answered
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import running
from tailrace.progress.positions import listed, named

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
    if len(told.brokers) == 1:
        return ok(name, "one broker has all; topics cannot have more copies")
    wanted = [topic for topic in (*_written(pipeline), pipeline.ledger.topic, *_INTERNAL) if topic in told.topics]
    fewest = {
        topic: min((len(each.replicas) for each in told.topics[topic].partitions.values()), default=_COPIES)
        for topic in wanted
    }
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
    places = [(topic, number) for topic in _written(pipeline) for number in range(counts.get(topic, 0))]
    held = _held(cluster, places)
    if not held:
        return ok(name, "no transaction is open in the topics that are written")
    places_held = listed([f"{named(place)} from offset {held[place]} on" for place in sorted(held)])
    topic, number = min(held)
    return warn(
        name,
        f"a transaction is open: {places_held}; it is another producer's, or the brokers have lost its end",
        f"kafka-transactions.sh --bootstrap-server {pipeline.kafka.bootstrap_servers} find-hanging --topic {topic} "
        f"--partition {number}; tailrace explain TR-207",
    )


def _held(cluster: Cluster, places: Iterable[tuple[str, int]]) -> TopicPartitions:
    """Return where transactions that are open now are still open some seconds later."""
    tops = cluster.latest(places)
    end = time.monotonic() + _SOON
    while True:
        committed = cluster.latest(tops, committed=True)
        held = {place: at for place, at in committed.items() if at < tops[place]}
        if not held or time.monotonic() > end:
            return held
        time.sleep(_PAUSE)
