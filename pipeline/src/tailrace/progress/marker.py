"""The marker, which proves that a sink partition has written a batch, and the decision that follows from it.

The marker is the offset batch + 1, committed inside the transaction that holds the records, for the ledger topic's
partition with the sink partition's number, in the pipeline's group of markers. Reading it takes one request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tailrace.errors import MarkerConflict
from tailrace.progress.plan import BatchId, SinkPartition

# In place of a digest:
GIVEN_UP = "given-up"  # a person gave up what the sink partition had not written of the batch
CHOSEN_AGAIN = "chosen-again"  # nothing of the batch was written, and a start gave it up to read its records again
REOPENED = "reopened"  # such a start was too late: another sink partition has written the batch, so this one may, too
MAX_METADATA = 4096  # the broker's default limit, offset.metadata.max.bytes

# Where a query or job of one's own continues if its open batch cannot be delivered: its positions cannot be set.
CONTINUE = (
    "check the output for what was delivered, then continue with another checkpoint folder and another id, from the "
    "startingOffsets that you choose"
)
CONTINUE_JOB = "run a batch job under another id, with the rows that are missing"


def markers_group(pipeline: str) -> str:
    """Return the consumer group whose offsets are the markers."""
    return f"tailrace.{pipeline}.markers"


def offsets_group(pipeline: str) -> str:
    """Return the consumer group whose offsets show Kafka's tools how far the pipeline has read."""
    return f"tailrace.{pipeline}"


def errors_group(pipeline: str) -> str:
    """Return the consumer group that holds the last error of the pipeline's drivers."""
    return f"tailrace.{pipeline}.errors"


def lead_group(pipeline: str) -> str:
    """Return the consumer group whose offset a driver commits to learn whether it still leads; nobody reads it."""
    return f"tailrace.{pipeline}.lead"


def drivers_group(pipeline: str) -> str:
    """Return the consumer group whose members are the live drivers."""
    return f"tailrace.{pipeline}.drivers"


def transactional_id(pipeline: str, partition: SinkPartition) -> str:
    """Return a sink partition's transactional id: it never changes, so that a new owner fences the old one."""
    return f"tailrace.{pipeline}.{partition}"


def driver_id(pipeline: str) -> str:
    """Return the transactional id of the driver's own producer."""
    return f"tailrace.{pipeline}.driver"


@dataclass(frozen=True)
class Marker:
    """`next` is the batch after the last one written; the metadata names the plan of that one."""

    next: BatchId
    digest: str
    sinks: int
    verdicts: str = ""  # of a reading task upstream of a shuffle: the records it rejected (`gateway/verdicts.py`)
    sample: str = ""  # of the rows, if no plan exists (`gateway/row_sample.py`)

    @property
    def given_up(self) -> bool:
        """Whether the batch was not written, and must not be."""
        return self.digest in {GIVEN_UP, CHOSEN_AGAIN}

    @property
    def metadata(self) -> str:
        """What is committed with the offset."""
        data: dict[str, object] = {"digest": self.digest, "sinks": self.sinks}
        if self.verdicts:
            data["verdicts"] = self.verdicts
        if self.sample:
            data["sample"] = self.sample
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def of(cls, batch: BatchId, digest: str, sinks: int, verdicts: str = "", sample: str = "") -> Marker:
        """Return the marker which proves that `batch` is written."""
        return cls(BatchId(batch + 1), digest, sinks, verdicts, sample)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Marker | None:
        """Read the marker from a committed offset; None if nothing is committed."""
        if offset < 0:
            return None
        try:
            data = json.loads((metadata or "").rstrip("\0"))
            digest, sinks = str(data["digest"]), int(data["sinks"])
            return cls(BatchId(offset), digest, sinks, str(data.get("verdicts", "")), str(data.get("sample", "")))
        except (ValueError, KeyError, TypeError):
            # An offset that a tool has set: it has no digest, so it cannot be mistaken for ours.
            return cls(BatchId(offset), "", 0)


class Decision(StrEnum):
    """Whether a task writes or skips its sink partition."""

    WRITE = "write"
    SKIP = "skip"


def decide(marker: Marker | None, batch: BatchId, digest: str, who: str, *, planned: bool = True) -> Decision:
    """Decide to write or skip; raise MarkerConflict if the marker contradicts the plan, or the job that has none."""
    if marker is None or marker.next <= batch:
        return Decision.WRITE
    if marker.next == batch + 1 and marker.digest == digest:
        return Decision.SKIP
    if marker.given_up:
        again = marker.digest == CHOSEN_AGAIN
        raise MarkerConflict(
            f"{who}: batch {marker.next - 1} was given up {'by a newer driver' if again else 'with --give-up'}, and "
            f"this is batch {batch}",
            kept="nothing was written",
            then="if no newer driver has taken over, "
            + (
                "start the pipeline again: it reads the records of the batch again"
                if again
                else "set where to continue: `tailrace offsets set FILE … --give-up`"
            ),
        )
    found = f"digest {marker.digest or '(none: set by a tool)'}"
    why = (
        f"batch {batch} is already written, by another {'plan' if planned else 'job'} ({found}, expected {digest})"
        if marker.next == batch + 1
        else f"batch {marker.next - 1} is already written ({found}), and this is batch {batch}"
    )
    raise MarkerConflict(
        f"{who}: {why}",
        kept="nothing was written",
        then="look for a second pipeline with this name, and rename one; if there is none, check the output for what "
        "was delivered, then set where to continue: `tailrace offsets set FILE … --give-up`; for a stateful pipeline: "
        "`tailrace explain TR-303`"
        if planned
        else "look for a second query or job with this id, and give one another id; if there is none, use the "
        f"checkpoint folder and the option replay that the query used before; otherwise {CONTINUE}; {CONTINUE_JOB}",
    )


def check_not_behind(batch: BatchId, markers: Mapping[SinkPartition, Marker], who: str, then: str) -> None:
    """Raise MarkerConflict if a sink partition has written a later batch than this one, the last in the ledger."""
    ahead = max((marker.next for marker in markers.values()), default=0)
    if ahead > batch + 1:
        raise MarkerConflict(
            f"{who}: a sink partition has written batch {ahead - 1}, and the last plan in the ledger is of batch "
            f"{batch}",
            kept="nothing was read or written",
            then=f"restore the ledger topic; or {then}",
        )
