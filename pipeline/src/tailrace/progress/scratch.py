"""The checkpoint folder that Spark asks for, rebuilt from the ledger at each start.

Spark plans its batches from a folder. For a stateless pipeline that folder is scratch space: what it must hold to go
on after batch N is the query's id, N's entry in the offset log, and the note that N is done. The ledger has all three.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from tailrace.progress.plan import BatchId, Plan

_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class Scratch:
    """A checkpoint folder on the driver's disk, for one run."""

    folder: Path
    query: str

    @classmethod
    def after(cls, plan: Plan | None, entry: str | None) -> Scratch:
        """A folder in which the next batch is the one after the plan's; `entry` replaces the plan's own."""
        folder = Path(tempfile.mkdtemp(prefix="tailrace-"))
        query = plan.query if plan is not None else str(uuid.uuid4())
        (folder / "metadata").write_text(json.dumps({"id": query}))
        if plan is not None:
            for name in ("offsets", "commits"):
                (folder / name).mkdir()
            (folder / "commits" / str(plan.batch)).write_text(_COMMITTED)
            # Spark also asks for the entry before, of which it uses nothing once the batch is done.
            for batch in range(max(0, plan.batch - 1), plan.batch + 1):
                (folder / "offsets" / str(batch)).write_text(entry or plan.entry)
        return cls(folder, query)

    def entry(self, batch: BatchId) -> str:
        """Spark's offset log entry of a batch."""
        return (self.folder / "offsets" / str(batch)).read_text()

    def remove(self) -> None:
        """Throw the folder away: the ledger holds what matters."""
        shutil.rmtree(self.folder, ignore_errors=True)
