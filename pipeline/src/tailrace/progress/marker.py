"""The proof that a sink partition has written a batch, and what follows from it.

The marker is the offset batch + 1, committed inside the transaction that holds the records, for the sink
partition's number in the ledger topic, in the pipeline's group of markers. Reading it takes one request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from tailrace.errors import MarkerConflict
from tailrace.progress.plan import BatchId, SinkPartition

MAX_METADATA = 4096  # the broker's default limit, offset.metadata.max.bytes


def markers_group(pipeline: str) -> str:
    """The consumer group whose offsets are the markers."""
    return f"tailrace.{pipeline}.markers"


def offsets_group(pipeline: str) -> str:
    """The consumer group whose offsets show Kafka's tools how far the pipeline has read."""
    return f"tailrace.{pipeline}"


def drivers_group(pipeline: str) -> str:
    """The consumer group whose members are the drivers that are alive."""
    return f"tailrace.{pipeline}.drivers"


def transactional_id(pipeline: str, partition: SinkPartition) -> str:
    """The transactional id of a sink partition: the same for ever, so that a new owner fences the old one."""
    return f"tailrace.{pipeline}.{partition}"


def driver_id(pipeline: str) -> str:
    """The transactional id of the driver's own producer."""
    return f"tailrace.{pipeline}.driver"


@dataclass(frozen=True)
class Marker:
    """`next` is the batch after the last one written; the metadata names the plan that it was written by."""

    next: BatchId
    digest: str
    sinks: int
    verdicts: str = ""  # behind a shuffle: which records the reading task has rejected (`progress/verdicts.py`)

    @property
    def metadata(self) -> str:
        """What is committed beside the offset."""
        told: dict[str, object] = {"digest": self.digest, "sinks": self.sinks}
        if self.verdicts:
            told["verdicts"] = self.verdicts
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def of(cls, batch: BatchId, digest: str, sinks: int, verdicts: str = "") -> Marker:
        """The marker that says that `batch` is written."""
        return cls(BatchId(batch + 1), digest, sinks, verdicts)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Marker | None:
        """The marker that a committed offset is; None where nothing is committed."""
        if offset < 0:
            return None
        try:
            data = json.loads((metadata or "").rstrip("\0"))
            return cls(BatchId(offset), str(data["digest"]), int(data["sinks"]), str(data.get("verdicts", "")))
        except (ValueError, KeyError, TypeError):
            # An offset that a tool has set: it has no digest, so it can never be taken for ours.
            return cls(BatchId(offset), "", 0)


class Decision(StrEnum):
    """What a task does with its sink partition."""

    WRITE = "write"
    SKIP = "skip"


def decide(marker: Marker | None, batch: BatchId, digest: str, who: str) -> Decision:
    """Write or skip; a marker that contradicts the plan stops the pipeline."""
    if marker is None or marker.next <= batch:
        return Decision.WRITE
    if marker.next == batch + 1 and marker.digest == digest:
        return Decision.SKIP
    found = f"digest {marker.digest or '(none: set by a tool)'}"
    why = (
        f"batch {batch} is written already, by another plan ({found}, expected {digest})"
        if marker.next == batch + 1
        else f"batch {marker.next - 1} is written already ({found}), and this is batch {batch}"
    )
    raise MarkerConflict(
        f"{who}: {why}",
        kept="nothing was written",
        then="look for a second pipeline of this name, and rename one; if there is none, look at the output for what "
        "is delivered, then say where to go on: `tailrace offsets set FILE … --give-up`",
    )
