"""The note that the pipeline's offset group holds next to each offset: the plan whose transaction committed it.

The ledger and the group are written in one transaction, so the group can name only the ledger's last plan. If it names
a later one, the ledger is an older copy, or another one was used meanwhile: what it would deliver may be delivered.
Offsets that other tools or older versions committed have no note, and say nothing. If the last plan is done, a note of
an earlier one is the memory of a broker that has lost the group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from tailrace.progress.plan import Place
from tailrace.progress.stream_plan import AnyPlan, StreamPlan


@dataclass(frozen=True)
class GroupNote:
    """What identifies a plan, and whether it was recorded as done."""

    batch: int
    at: float
    done: bool

    @classmethod
    def of(cls, plan: AnyPlan) -> Self:
        """Return the note that is committed with a plan."""
        return cls(plan.batch, plan.at, plan.done)

    @classmethod
    def read(cls, metadata: str | None) -> Self | None:
        """Read a note from an offset's metadata; None if it holds anything else."""
        try:
            data = json.loads((metadata or "").rstrip("\0"))
            return cls(int(data["batch"]), float(data["at"]), bool(data["done"]))
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def metadata(self) -> str:
        """What is committed with the offset."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def follows(self, plan: AnyPlan) -> bool:
        """Return whether this note was written after a plan; by its time if another ledger counts its own batches."""
        if (self.batch, self.at) == (plan.batch, plan.at):
            return self.done and not plan.done
        return self.batch > plan.batch or self.at > plan.at

    def precedes(self, plan: AnyPlan) -> bool:
        """Return whether this note was written before a plan."""
        return self != GroupNote.of(plan) and not self.follows(plan)


def later(plan: AnyPlan, stored: Mapping[Place, str | None]) -> dict[Place, GroupNote]:
    """Return the notes on the partitions of the ledger's last plan that were written after it."""
    notes = _notes(stored)
    # Spark reads new partitions in a batch before the group hears of them: their notes may be of an earlier pipeline.
    if isinstance(plan, StreamPlan) and GroupNote.of(plan) in notes.values():
        return {}
    return {place: note for place, note in notes.items() if place in plan.ends and note.follows(plan)}


def former(plan: AnyPlan, stored: Mapping[Place, str | None]) -> dict[Place, GroupNote]:
    """Return the notes on the partitions of a plan that were written before it, if it is done.

    The transaction that notes a plan as done commits all its ends. So the broker that shows such a note has lost the
    group.
    """
    notes = _notes(stored)
    return {place: note for place, note in notes.items() if plan.done and place in plan.ends and note.precedes(plan)}


def _notes(stored: Mapping[Place, str | None]) -> dict[Place, GroupNote]:
    return {place: note for place, text in stored.items() if (note := GroupNote.read(text)) is not None}
