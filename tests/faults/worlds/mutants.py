"""Mutants: small breakages of the product, each of which the worlds must catch.

A mutant is a text in a module and what replaces it, in a copy of the package that only the drivers of its worlds
import. One that survives is a hole in the campaign.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tailrace
from faults.worlds.world import DELETIONS, Strike, World

SOURCE = Path(tailrace.__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A breakage: what it is, and where."""

    name: str
    module: str  # relative to the package
    old: str
    new: str
    only: Callable[[World], bool] = lambda world: True  # the worlds that can show it

    def build(self, folder: Path) -> Path:
        """Copy the package, broken, into a folder; return what must be on the import path."""
        place = folder / self.name
        shutil.copytree(SOURCE, place / "tailrace", ignore=shutil.ignore_patterns("__pycache__"))
        file = place / "tailrace" / self.module
        text = file.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.module} must contain the text once: {self.old!r}")
        file.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return place


def _with(*strikes: Strike) -> Callable[[World], bool]:
    return lambda world: not set(strikes).isdisjoint(world.strikes)


_PID = ".{__import__('os').getpid()}\""
_ROWS = "    for batch in batches:\n        remaining"

MUTANTS = (
    Mutant("old-drivers-not-fenced", "progress/marker.py", '.driver"\n', f".driver{_PID}\n"),
    Mutant("sink-partitions-not-fenced", "driver/recovery.py", "    ledger.fence(plan.sinks if plan else 0)\n", ""),
    Mutant("transactional-ids-of-their-own", "progress/marker.py", '.{partition}"\n', f".{{partition}}{_PID}\n"),
    Mutant(
        "commit-not-waited-for",
        "gateway/producers.py",
        "lambda: self.producer.commit_transaction(_COMMIT_LIMIT))",
        "__import__('threading').Thread(target=self.producer.commit_transaction, daemon=True).start)",
    ),
    Mutant("range-read-to-its-end-less-one", "gateway/reading.py", "take(span.end, ", "take(span.end - 1, "),
    Mutant("marker-not-in-the-transaction", "gateway/producers.py", '("adding its marker", adding)', '("", int)'),
    Mutant("marker-ignored", "progress/marker.py", "if marker is None or marker.next <= batch:", "if True:"),
    Mutant("marker-of-the-next-batch", "progress/marker.py", "BatchId(batch + 1),", "BatchId(batch + 2),"),
    Mutant(
        "marker-of-another-sink-partition",
        "gateway/producers.py",
        "self._place.partition, marker.next",
        "self._place.partition ^ 1, marker.next",
    ),
    Mutant(
        "first-position-not-kept",
        "driver/first_position.py",
        "if not stored and context.pipeline.source.auto_offset_reset is not Reset.LATEST:",
        "if True:",
        lambda world: world.knobs.late or Strike.RENAME in world.strikes,
    ),
    Mutant(
        "plan-after-the-job",
        "driver/loop.py",
        "            context.ledger.write(plan, self.positions)\n",
        "            self.deliver(plan, limit=limit)\n            context.ledger.write(plan, self.positions)\n",
    ),
    Mutant("open-batch-taken-for-done", "driver/recovery.py", "    if all(done):\n", "    if any(done):\n"),
    Mutant(
        "open-batch-chosen-again",
        "driver/recovery.py",
        "    if plan.done:\n        return None\n",
        "    if plan.done:\n        return None\n    return begins(plan, plan.ends)\n",
    ),
    Mutant(
        "older-ledger-taken",
        "driver/recovery.py",
        "    if plan is not None:\n        other = way_out(",
        "    if None is not None:\n        other = way_out(",
        _with(Strike.RESTORE),
    ),
    Mutant(
        "open-batch-of-the-old-name-passed-over",
        "progress/predecessor.py",
        "    if not group.startswith(_PREFIX):\n",
        "    if group:\n",
        _with(Strike.RENAME),
    ),
    Mutant(
        "recreated-topic-taken-for-the-same",
        "driver/recovery.py",
        "if ids.get(topic, name) != name)",
        "if ids.get(topic, name) == '')",
        _with(Strike.RECREATE, Strike.SWAP),
    ),
    Mutant("open-transactions-read", "gateway/consuming.py", '": isolation}', '": "read_uncommitted"}'),
    Mutant("one-record-skipped", "driver/loop.py", "each.end for part", "each.end + (number % 4 == 3) for part"),
    Mutant("one-record-read-twice", "driver/loop.py", "each.end for part", "each.end - (number % 4 == 3) for part"),
    Mutant(
        "sixth-range-dropped",
        "driver/loop.py",
        "            parts=parts,\n",
        "            parts=tuple(each[:5] for each in parts),\n",
    ),
    Mutant(
        "backfill-beyond-its-range",
        "progress/positions.py",
        "min(end, until.get(place, 0))",
        "min(end, until.get(place, 0) + 1)",
        lambda world: world.backfill is not None,
    ),
    Mutant(
        "replay-without-its-marks",
        "admin/replay.py",
        '        add_offsets(self._producer, offsets, self._reader.metadata, _LIMIT, "adding the marks")\n',
        "",
        lambda world: world.replays is not None and not world.knobs.at_least_once,
    ),
    Mutant(
        "new-partitions-read-from-their-end",
        "driver/loop.py",
        "cluster.earliest(",
        "cluster.latest(",
        _with(Strike.GROW, *DELETIONS),
    ),
    Mutant(
        "rejected-records-dropped",
        "gateway/send.py",
        "        _one_by_one(sender, task, remaining, counts)\n",
        '        _one_by_one(sender, task, remaining.filter(remaining.column("reason").is_null()), counts)\n',
    ),
    Mutant(
        "rows-sent-backwards",
        "gateway/send.py",
        _ROWS,
        _ROWS.replace("in batches", "in (each[::-1] for each in batches)"),
    ),
    Mutant(
        "last-rows-of-a-large-task-dropped",
        "gateway/send.py",
        _ROWS,
        _ROWS.replace("in batches", "in (each.slice(0, each.num_rows - each.num_rows // 500) for each in batches)"),
    ),
)
