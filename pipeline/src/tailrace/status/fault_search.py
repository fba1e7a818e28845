"""The search for faulty records, as the driver's notes announce it.

While it lasts no batch is delivered, for minutes perhaps; the pipeline is neither stalled nor too slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NOTE: Final = re.compile(
    r"batch (?P<batch>\d+): (?P<why>.*); looking for the records, for up to (?P<limit>\d+) s", re.DOTALL
)


@dataclass(frozen=True)
class FaultSearch:
    """The search of a batch for the records at which the pipeline's function raises."""

    batch: int
    why: str  # what was raised
    since: float
    limit: float  # seconds

    @property
    def until(self) -> float:
        """When the search ends at the latest."""
        return self.since + self.limit


def announced(note: str, at: float) -> FaultSearch | None:
    """Return the search that a driver's note announces; None if the note says something else."""
    match = _NOTE.fullmatch(note)
    return FaultSearch(int(match["batch"]), match["why"], at, float(match["limit"])) if match is not None else None
