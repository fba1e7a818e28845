"""The ledger's topic: created to keep each pipeline's last plan, and refused if brokers would delete plans."""

from __future__ import annotations

from tailrace import errors
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation
from tailrace.kafka.topics import setting

# Small segments: only closed ones are compacted, and each start reads the others.
LEDGER_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}


def ensure(cluster: Cluster, topic: str, partitions: int, replication: int) -> int:
    """Create it unless it exists, and return its number of partitions; raise LedgerUnusable if plans can be lost."""
    found = cluster.ensure(topic, partitions, replication, LEDGER_SETTINGS, Operation.READ)
    policy = setting(cluster, topic, "cleanup.policy")
    if policy is not None and "delete" in policy.split(","):
        raise errors.LedgerUnusable(
            f"the ledger topic {topic!r} has cleanup.policy={policy}: the brokers would delete plans",
            kept="nothing was read or written",
            then=f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} "
            "--add-config cleanup.policy=compact",
        )
    return found
