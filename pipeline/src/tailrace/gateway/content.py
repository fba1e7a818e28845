"""Content digests: how a replay without a plan recognises a sink partition's rows.

`format("tailrace")` cannot see which source ranges a task reads, and Spark may number the tasks of a replay in another
order than the first time. So the marker holds a digest of the rows, and a replay in which rows have moved or changed is
refused before any of it is committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.errors import CutChanged, MarkerConflict
from tailrace.gateway import Assignment
from tailrace.progress.marker import Marker

_THEN = (
    "write through foreachBatch(tailrace.exactly_once(...)), which plans its batches; or, where the source keeps its "
    'order across restarts (Kafka with more than four topic partitions), set the option replay to "by-number"'
)


class Content:
    """A digest of all rows, in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches, adding their rows to the digest."""
        for batch in batches:
            for row in batch.to_pylist():
                self._hash.update(repr(row).encode())
                self.count += 1
            yield batch

    @property
    def digest(self) -> str:
        """The digest of the rows so far."""
        return self._hash.hexdigest()

    def named(self, run: str) -> str:
        """Return what the marker names: the content, and the run that wrote it."""
        return f"{self.digest}/{run}"


def check_replay(own: Marker, task: Assignment, content: Content) -> None:
    """Refuse the replay of a marked sink partition unless its rows are the ones that were delivered."""
    if own.next > task.batch + 1:
        raise MarkerConflict(
            f"{task}: batch {own.next - 1} is already written",
            kept="nothing was written",
            then="use the checkpoint folder that the query used before, or give the sink another id",
        )
    if own.digest.split("/")[0] != content.digest:
        raise CutChanged(
            f"{task} is already delivered, with other rows than the {content.count} it has now: Spark numbered its "
            "tasks differently, or computing the rows again gives other rows",
            kept="nothing more of the batch was delivered",
            then=_THEN,
        )


def check_moved(markers: Mapping[int, Marker], task: Assignment, content: Content) -> None:
    """Refuse the rows of an unmarked sink partition if another one delivered them in an earlier run."""
    for number, marker in markers.items():
        digest, _, run = marker.digest.partition("/")
        if marker.next == task.batch + 1 and run != task.run and digest == content.digest and content.count:
            raise CutChanged(
                f"{task}: its {content.count} rows were delivered by sink partition {number} in an earlier run: Spark "
                "numbered its tasks differently",
                kept="nothing more of the batch was delivered",
                then=_THEN,
            )
