"""The brokers' own view of transactions: every transactional id and its state, from their log.

This decodes the coordinator's topic `__transaction_state` directly (Kafka's TransactionLogKey and
TransactionLogValue), with no client's view and no command in between.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from confluent_kafka import Message

from faults.reading import exists, whole

_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
_OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
_TOPIC = "__transaction_state"


@dataclass(frozen=True)
class Transaction:
    """The last known state of a transactional id."""

    name: str
    producer: int
    epoch: int
    state: str

    @property
    def open(self) -> bool:
        """Whether readers wait for it."""
        return self.state in _OPEN


def transactions(bootstrap: str, prefix: str) -> dict[str, Transaction]:
    """Read every transactional id that begins with the prefix: none before a Kafka's first transaction."""
    found: dict[str, Transaction] = {}

    def keep(message: Message) -> None:
        raw = message.key() or b""
        if len(raw) < 4 or struct.unpack_from(">h", raw)[0] != 0:
            return  # a key of another kind
        name = raw[4 : 4 + struct.unpack_from(">h", raw, 2)[0]].decode()
        value = message.value()
        if not name.startswith(prefix):
            return
        if value is None:
            found.pop(name, None)
            return
        # Both versions begin alike: version, producer id, epoch, timeout, state. The ids of the previous and next
        # producer are tagged fields at the end.
        _, producer, epoch, _, state = struct.unpack_from(">hqhib", value)
        found[name] = Transaction(name, producer, epoch, _STATES[state])

    if exists(bootstrap, _TOPIC):
        whole(bootstrap, _TOPIC, keep)
    return found


def ids(bootstrap: str, pipeline: str) -> set[str]:
    """Read the transactional ids of a pipeline."""
    return set(transactions(bootstrap, f"tailrace.{pipeline}."))


def open_after(bootstrap: str, pipeline: str, limit: float = 10.0) -> list[str]:
    """Wait until the pipeline has no open transaction; return those still open after `limit` seconds."""
    until = time.monotonic() + limit
    while True:
        left = [each.name for each in transactions(bootstrap, f"tailrace.{pipeline}.").values() if each.open]
        if not left or time.monotonic() > until:
            return sorted(left)
        time.sleep(0.2)


def beyond(bootstrap: str, pipeline: str, sinks: int) -> list[str]:
    """Return the transactional ids that a pipeline with this many sink partitions does not need."""
    needed = {f"tailrace.{pipeline}.{each}" for each in ("driver", "replay", *range(sinks))}
    return sorted(ids(bootstrap, pipeline) - needed)
