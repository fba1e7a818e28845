"""The result of a supervised pipeline, which is restarted whenever it ends, as a row of the table."""

from __future__ import annotations

from typing import Any

from faults.scenario import Result
from faults.transactions import beyond, open_after
from support.supervised import Supervised


def proven(one: Supervised, fault: str, **others: Any) -> Result:
    """Read both topics, and compare."""
    found = one.proof()
    return Result(
        fault,
        **{"runs": 1, **others},
        records=found.compared.in_,
        lost=found.compared.lost,
        duplicated=found.compared.duplicated + found.compared.unexpected,
        reordered=found.reordered,
        lingering=len(open_after(one.direct, one.name)),
        ids=len(beyond(one.direct, one.name, one.partitions)),
    )
