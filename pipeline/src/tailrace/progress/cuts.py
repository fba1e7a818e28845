"""What deals the rows of a batch out to its sink partitions: shuffles, as Spark prints them, and branches of unions.

A batch that is delivered in part must be dealt out the same way again. A plan of an earlier version does not tell
columns of one name apart, and does not note branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COLUMN_NUMBER = re.compile(r"~\d+")
_BRANCHES = "branches "
_SAME_ORDER = (
    "build the union's branches in the same order at each start, not in that of a set, and with the files that they "
    "were built from, and finish the batch (`tailrace run FILE --batch`); if it cannot be finished: "
    "`tailrace explain TR-302`"
)
_SAME_JOIN = (
    "finish the batch with the table and the settings of the last run (`tailrace run FILE --batch`); "
    "spark.sql.autoBroadcastJoinThreshold, -1 or larger than the table, gives the other join"
)


def with_branches(cut: tuple[str, ...], digest: str) -> tuple[str, ...]:
    """Add the branches of unions, by a digest of their order and of what decides their records; empty: there are none.

    The number of branches shows in that of the sink partitions.
    """
    return (*cut, f"{_BRANCHES}{digest}") if digest else cut


def without_numbers(cut: Iterable[str]) -> tuple[str, ...]:
    """Return shuffles as Spark prints them, without what tells columns of one name apart."""
    return tuple(_COLUMN_NUMBER.sub("", each) for each in cut)


def same_cut(was: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Return whether a batch that was planned with this cut is dealt out by the one of now."""
    shuffles, mine = _shuffles(was), _shuffles(now)
    if shuffles != (mine if any(map(_COLUMN_NUMBER.search, shuffles)) else without_numbers(mine)):
        return False
    return shuffles == was or was[len(shuffles) :] == now[len(mine) :]


def shown_cuts(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, str]:
    """Return two cuts for people: with the numbers of columns only if nothing else tells them apart."""
    was, now = _shuffles(was), _shuffles(now)
    plain = without_numbers(was), without_numbers(now)
    first, second = plain if plain[0] != plain[1] else (was, now)
    return ", ".join(first), ", ".join(second)


def difference(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, str]:
    """Return how a batch was begun that is now dealt out differently, for people, and what to do."""
    if same_cut(_shuffles(was), _shuffles(now)):
        return "the branches of a union in another order, or with other conditions", _SAME_ORDER
    begun, planned = (each or "none" for each in shown_cuts(was, now))
    why = "it joins a table by its size, and that or a setting has changed"
    return f"the shuffles {begun}; Spark would now plan {planned}: {why}", _SAME_JOIN


def _shuffles(cut: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in cut if not each.startswith(_BRANCHES))
