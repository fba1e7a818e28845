"""What the rows of a sink partition show: how a replay without a plan recognises what was delivered.

`format("tailrace")` cannot see which source ranges a task reads, and Spark may number the tasks of a replay in another
order than the first time, or make fewer or more of them. So the marker holds a digest and a sample of the rows, and a
task whose rows have moved or changed is refused before it commits.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tailrace.errors import CutChanged, MarkerConflict
from tailrace.gateway import Assignment
from tailrace.gateway.row_sample import Sample, Sampling, overlapping
from tailrace.progress.marker import CONTINUE, CONTINUE_JOB, Marker

_WIDTH = 16  # bytes of a digest
_SUM = "+"  # of a digest that does not depend on the order
_KEPT = "nothing of this task was committed; other tasks of the batch may have been delivered"
_THEN = (
    "if the query, its options or the number of its tasks was changed, change it back and start again; otherwise "
    f"{CONTINUE}; {CONTINUE_JOB}. For later queries, write with foreachBatch(tailrace.exactly_once(...)), which plans "
    "its batches; or, if the source keeps the order and the number of its tasks across restarts, set the option replay "
    'to "by-number" from the first batch on'
)


class Content:
    """The digest of all rows, in any order, and a sample of them; `markers` hold the samples to compare it with.

    Behind a shuffle, a task that Spark tries again gets its rows in another order.
    """

    def __init__(self, task: Assignment, markers: Mapping[int, Marker]) -> None:
        self._sum = 0  # of the rows' hashes
        self._ordered = hashlib.blake2b(digest_size=_WIDTH)  # what markers of version 0.1 have
        self.count = 0
        self.earlier = {
            number: marker
            for number, marker in markers.items()
            if marker.next == task.batch + 1 and _run_of(marker) != task.run
        }
        self._runs: dict[str, dict[int, Sample]] = defaultdict(dict)
        for number, marker in self.earlier.items():
            self._runs[_run_of(marker)][number] = Sample.of(marker.sample)
        self._sampling = Sampling(sample for run in self._runs.values() for sample in run.values())

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches, adding their rows."""
        for batch in batches:
            for row in batch.to_pylist():
                text = repr(row).encode()
                self._ordered.update(text)
                self._sum += int.from_bytes(hashlib.blake2b(text, digest_size=_WIDTH).digest(), "big")
                self._sampling.add(text)
                self.count += 1
            yield batch

    @property
    def digest(self) -> str:
        """The digest of the rows so far."""
        return f"{_SUM}{self._sum % (1 << 8 * _WIDTH):0{2 * _WIDTH}x}"

    def matches(self, marker: Marker) -> bool:
        """Return whether a marker is that of these rows."""
        digest = marker.digest.partition("/")[0]
        return digest == (self.digest if digest.startswith(_SUM) else self._ordered.hexdigest())

    def marker(self, task: Assignment) -> Marker:
        """Return the marker: the content, and the run that wrote it."""
        return Marker.of(task.batch, f"{self.digest}/{task.run}", task.sinks, sample=self._sampling.sample.text)

    def overlapping(self) -> int | None:
        """Return the number of a sink partition that delivered some of the rows in an earlier run."""
        found = (overlapping(self._sampling, run) for run in self._runs.values())
        return next((number for number in found if number is not None), None)


def _run_of(marker: Marker) -> str:
    return marker.digest.partition("/")[2]


def check_replay(own: Marker, task: Assignment, content: Content) -> None:
    """Refuse the replay of a marked sink partition unless its rows are the ones that were delivered."""
    if own.next > task.batch + 1:
        raise MarkerConflict(
            f"{task}: batch {own.next - 1} is already written",
            kept="nothing was written",
            then=f"use the checkpoint folder that the query used before; if it is lost, {CONTINUE}",
        )
    if not content.matches(own):
        raise CutChanged(
            f"{task} is already delivered, with other rows than the {content.count} it has now: Spark numbered its "
            "tasks differently, made fewer or more of them, or computing the rows again gives other rows",
            kept=_KEPT,
            then=_THEN,
        )


def check_moved(task: Assignment, content: Content) -> None:
    """Refuse the rows of an unmarked sink partition if another one delivered them, or some, in an earlier run."""
    for number, marker in content.earlier.items():
        if content.matches(marker) and content.count:
            raise CutChanged(
                f"{task}: its {content.count} rows were delivered by sink partition {number} in an earlier run: Spark "
                "numbered its tasks differently",
                kept=_KEPT,
                then=_THEN,
            )
    other = content.overlapping()
    if other is not None:
        raise CutChanged(
            f"{task}: some of its {content.count} rows were delivered by sink partition {other} in an earlier run: "
            "Spark made fewer or more tasks of the batch, or divided its rows differently",
            kept=_KEPT,
            then=_THEN,
        )
