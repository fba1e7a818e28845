"""The ends of logs themselves, whatever their transactions, and whether the brokers agree on them.

A broker that is cut off from the others continues as the leader of its partitions, and reports an end that lacks what
the next leader has received since. A client keeps the leader that it knows for minutes, and a new client may learn it
from that very broker. So before planned offsets count as lost, every broker is asked which one leads
(docs/decisions/0041).
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from tailrace.gateway.consuming import Consumer, settings
from tailrace.kafka.leaders import leaders

NOWHERE = -1  # the end of a partition that does not exist
KEPT = "everything that was delivered; nothing of this batch is delivered in part"
CUT_OFF = "nothing, if the next try passes; otherwise look for a broker that is cut off from the others"


class LogEnds:
    """The ends of logs themselves. A read_committed consumer is told where the first open transaction begins instead.

    Only a stalled read asks, so the consumer that asks exists from the first question on.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def __call__(self, topic: str, partition: int, limit: float) -> int:
        """Ask the leader for the end of a partition's log."""
        with self._lock:
            if self._consumer is None:
                self._consumer = _client(self._options)
            consumer = self._consumer
        collections.deque(consumer.events(), maxlen=0)  # the read's own consumer reports the same
        return consumer.watermarks(topic, partition, limit)[1]

    def agreed(self, topic: str, partition: int, limit: float) -> int:
        """Ask the leader that the brokers agree on, through new clients; return NOWHERE if there is no such partition.

        Raise KafkaFailed if they contradict each other, or if half of them or more do not answer.
        """
        with contextlib.closing(_client(self._options)) as asking:
            brokers = asking.brokers(limit)
            found = leaders(asking.handle, brokers, topic, partition, limit)
        leader = found.agreed(f"{topic}-{partition}", KEPT, CUT_OFF)
        if leader is None:
            return NOWHERE
        # Any other broker may be cut off, and name itself.
        options = {**self._options, "bootstrap.servers": brokers[leader]}
        with contextlib.closing(_client(options)) as consumer:
            return consumer.watermarks(topic, partition, limit)[1]

    def close(self) -> None:
        """Free the consumer, if there is one."""
        with self._lock:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _client(options: Mapping[str, Any]) -> Consumer:
    return Consumer(settings(options, "read_uncommitted", 1))
