"""Where no plan exists: a sink partition's rows are known by their content.

`format("tailrace")` cannot see which source ranges a task reads, and Spark may number the tasks of a replay in another
order than the first time. So the marker names a digest of the rows, and a replay in which the rows have moved or
changed is refused before anything of it is committed.
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
    'order over a restart (Kafka with more than four topic partitions), set the option replay to "by-number"'
)


class Content:
    """A digest of all rows, in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, looked at on their way."""
        for batch in batches:
            for row in batch.to_pylist():
                self._hash.update(repr(row).encode())
                self.count += 1
            yield batch

    @property
    def digest(self) -> str:
        """The digest of what has passed."""
        return self._hash.hexdigest()

    def named(self, run: str) -> str:
        """What the marker names: the content, and the run that wrote it."""
        return f"{self.digest}/{run}"


def check_replay(own: Marker, task: Assignment, content: Content) -> None:
    """The sink partition is marked: its rows must be those that were delivered."""
    if own.next > task.batch + 1:
        raise MarkerConflict(
            f"{task}: batch {own.next - 1} is written already",
            kept="nothing was written",
            then="use the checkpoint folder that the query used before, or give the sink another id",
        )
    if own.digest.split("/")[0] != content.digest:
        raise CutChanged(
            f"{task} is delivered already, with other rows than the {content.count} it has now: Spark has numbered its "
            "tasks differently, or the rows are not the same when they are computed again",
            kept="nothing more of the batch was delivered",
            then=_THEN,
        )


def check_moved(markers: Mapping[int, Marker], task: Assignment, content: Content) -> None:
    """The sink partition is not marked: its rows must not be those that another one has delivered in an earlier run."""
    for number, marker in markers.items():
        digest, _, run = marker.digest.partition("/")
        if marker.next == task.batch + 1 and run != task.run and digest == content.digest and content.count:
            raise CutChanged(
                f"{task}: its {content.count} rows were delivered by sink partition {number} in an earlier run: Spark "
                "has numbered its tasks differently",
                kept="nothing more of the batch was delivered",
                then=_THEN,
            )
