"""The prefetch state of a source partition: how far it was read, how far it was received, and the records between."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import KafkaError

from tailrace import errors
from tailrace.gateway.columns import Messages
from tailrace.gateway.consuming import message, release

_BATCH_BYTES = 64 << 20  # bytes of keys, values and headers per Arrow batch, at most
_END: int = KafkaError._PARTITION_EOF


@dataclass
class Partition:
    """A consumer's position in one source partition; hold the lock to change it."""

    topic: str
    number: int
    topic_id: str = ""  # of the plan that it was read for last
    lock: threading.Lock = field(default_factory=threading.Lock)
    fetched: bool = False  # librdkafka is fetching it, from `seen` on
    turn: int = 0  # counts reads: the latest one owns the position
    readers: int = 0
    used: float = 0.0
    next: int = 0  # a read that starts here continues the last one
    seen: int = 0  # every visible record in [next, seen) is pending
    pending: list[Messages] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    def drop(self) -> None:
        """Release the pending records."""
        dropped, self.pending = self.pending, []
        for each in dropped:
            release(each.pointers)

    def take(self, before: int, rows: int) -> Messages | None:
        """Detach pending records below this offset, as many as one Arrow batch holds."""
        if not self.pending:
            return None
        found = self.pending.pop(0)
        count = min(int(np.searchsorted(found.offsets, before)), rows)
        weights = found[:count].weights
        if int(weights.sum()) > _BATCH_BYTES:
            count = max(1, int(np.searchsorted(np.cumsum(weights), _BATCH_BYTES, "right")))
        if count < len(found):
            self.pending.insert(0, found[count:])
        return found[:count] if count else None

    def receive(self, pointers: np.ndarray) -> KafkaError | None:
        """Add messages of this partition; return the first error among them, after which none can be trusted."""
        if not len(pointers):
            return None
        found, failure = Messages.of(pointers), None
        codes = found.errors
        ends = codes[:0]
        if codes.any():
            wrong = np.flatnonzero((codes != 0) & (codes != _END))
            if len(wrong):
                failure = KafkaError(int(codes[wrong[0]]), message(int(pointers[wrong[0]])))
            cut = int(wrong[0]) if len(wrong) else len(found)
            ends = found.offsets[:cut][codes[:cut] == _END]
            kept = np.flatnonzero(codes[:cut] == 0)
            release(np.delete(pointers, kept))
            found = found[kept]
        found = self._new(found)
        if len(found):
            self.pending.append(found)
            self.seen = int(found.offsets[-1]) + 1
        if len(ends):
            self.seen = max(self.seen, int(ends[-1]))
        return failure

    def _new(self, found: Messages) -> Messages:
        """Drop records that were already received: after a leader change a fetch may start too early."""
        if not len(found) or int(np.diff(found.offsets, prepend=self.seen - 1).min()) > 0:
            return found
        old = found.offsets < self.seen
        release(found[old].pointers)
        found = found[~old]
        if len(found) and int(np.diff(found.offsets, prepend=self.seen - 1).min()) <= 0:
            release(found.pointers)
            raise errors.InvariantBroken(f"{self}: the offsets of fetched records do not ascend")
        return found
