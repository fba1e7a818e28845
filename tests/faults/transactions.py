"""What the brokers themselves say of transactions: every transactional id and its state, from their own log.

The coordinator's topic `__transaction_state` is read as what it is (Kafka's TransactionLogKey and TransactionLogValue):
no client's view and no command in between.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from confluent_kafka import Message

from faults.reading import whole

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
    """The last that is known of a transactional id."""

    name: str
    producer: int
    epoch: int
    state: str

    @property
    def open(self) -> bool:
        """Whether readers wait for it."""
        return self.state in _OPEN


def transactions(bootstrap: str, prefix: str) -> dict[str, Transaction]:
    """Every transactional id that begins so."""
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
        # Both versions begin alike: version, producer id, epoch, [the previous and next producer's id are tagged
        # fields at the end], timeout, state.
        _, producer, epoch, _, state = struct.unpack_from(">hqhib", value)
        found[name] = Transaction(name, producer, epoch, _STATES[state])

    whole(bootstrap, _TOPIC, keep)
    return found


def ids(bootstrap: str, pipeline: str) -> set[str]:
    """The transactional ids of a pipeline."""
    return set(transactions(bootstrap, f"tailrace.{pipeline}."))


def open_after(bootstrap: str, pipeline: str, limit: float = 10.0) -> list[str]:
    """The transactions of a pipeline that are still open after so many seconds."""
    until = time.monotonic() + limit
    while True:
        left = [each.name for each in transactions(bootstrap, f"tailrace.{pipeline}.").values() if each.open]
        if not left or time.monotonic() > until:
            return sorted(left)
        time.sleep(0.2)


def beyond(bootstrap: str, pipeline: str, sinks: int) -> list[str]:
    """Transactional ids that a pipeline with so many sink partitions has no need for."""
    needed = {f"tailrace.{pipeline}.driver", *(f"tailrace.{pipeline}.{number}" for number in range(sinks))}
    return sorted(ids(bootstrap, pipeline) - needed)
