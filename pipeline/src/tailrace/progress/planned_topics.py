"""Whether the source topics of a plan were deleted and created again while it was written.

Brokers take no position of a deleted topic, and the client asks until there is one of that name: positions of the older
topic would say that records of the newer have been read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tailrace import errors
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.topics import recreation, topic_ids
from tailrace.progress.plan import Plan


def changed(plan: Plan, read: Collection[str], cluster: Cluster) -> list[str]:
    """Return the topics among these that have another id now, not those that are missing; all if no broker answers.

    A plan also names topics that are no longer read, and may be hidden: of these, no position is written.
    """
    planned = {topic: name for topic, name in plan.topics.items() if topic in read}
    try:
        found = topic_ids(cluster.admin, planned)
    except errors.TailraceError:
        return list(planned)
    return [topic for topic, name in planned.items() if topic in found and found[topic][0] != name]


def refusal(plan: Plan, topics: Sequence[str], cluster: Cluster) -> errors.TailraceError:
    """Return why a plan was aborted: the topics were created again, or one answer alone did not show their ids."""
    try:
        found = source.ids_of(topics, cluster, plan.topics)
    except errors.TailraceError as error:
        return error
    again = [topic for topic, name in found.items() if name != plan.topics[topic]]
    if again:
        return recreation(again, f"while batch {plan.batch} was planned", "everything that was delivered")
    return errors.KafkaFailed(
        f"writing the plan of batch {plan.batch}: an answer did not show the ids of {', '.join(topics)}",
        kept="nothing of the batch was written",
        then="start the pipeline again; if this repeats, look for a broker that is cut off from the others",
    )
