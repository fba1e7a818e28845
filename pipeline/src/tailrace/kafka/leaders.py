"""Which broker leads a partition, as each of the brokers knows it.

A broker that is cut off from the others takes itself for the leader until it hears of the next one, and tells clients
so. The others know better. So each broker is asked by its id: left to itself, librdkafka asks any of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.kafka.clients import answered
from tailrace.kafka.described_topics import described
from tailrace.kafka.errors import UNKNOWN_TOPIC

_AT_ONCE = 16  # brokers that are asked at the same time
_MISSING = None  # the leader of a partition that does not exist


@dataclass(frozen=True)
class Leaders:
    """What the brokers say; those that do not answer are left out of `told`."""

    servers: str  # the brokers that were asked, as a client takes them
    asked: int
    told: Mapping[int, int | None]  # by broker: the leader that it names, -1 without one

    @property
    def agreed(self) -> bool:
        """Whether more than half of the brokers have answered, and all of these the same."""
        return 2 * len(self.told) > self.asked and len(set(self.told.values())) == 1

    @property
    def missing(self) -> bool:
        """Whether no broker knows the partition."""
        return set(self.told.values()) == {_MISSING}

    def __str__(self) -> str:
        said = [
            f"broker {broker} says {'that it does not exist' if leader is _MISSING else leader}"
            for broker, leader in sorted(self.told.items())
        ]
        return ", ".join([*said, f"{self.asked - len(self.told)} of {self.asked} do not answer"])


def leaders(options: Mapping[str, Any], topic: str, partition: int, limit: float) -> Leaders:
    """Ask every broker through a new client; raise KafkaException if none answers."""
    end = time.monotonic() + limit
    admin = AdminClient(dict(options))
    nodes = answered(admin.describe_cluster(request_timeout=limit), limit, "asking for the brokers").nodes

    def ask(broker: int) -> dict[int, int | None]:
        try:
            [found] = described(admin, [topic], max(0.1, end - time.monotonic()), broker)
        except KafkaException:
            return {}
        if found.error:
            return {broker: _MISSING} if found.error in UNKNOWN_TOPIC else {}
        return {broker: found.leaders[partition] if partition < found.partitions else _MISSING}

    told: dict[int, int | None] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in pool.map(ask, [node.id for node in nodes]):
            told |= each
    return Leaders(",".join(f"{node.host}:{node.port}" for node in nodes), len(nodes), told)
