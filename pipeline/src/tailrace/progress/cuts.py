"""What deals the rows of a batch out to its sink partitions: shuffles, as Spark prints them.

A batch that is delivered in part must be dealt out the same way again. A plan of an earlier version does not tell
columns of one name apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_COLUMN_NUMBER = re.compile(r"~\d+")


def without_numbers(cut: Iterable[str]) -> tuple[str, ...]:
    """Return shuffles as Spark prints them, without what tells columns of one name apart."""
    return tuple(_COLUMN_NUMBER.sub("", each) for each in cut)


def same_cut(was: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Return whether a batch that was planned with these shuffles is dealt out by those of now."""
    return was == (now if any(map(_COLUMN_NUMBER.search, was)) else without_numbers(now))


def shown_cuts(was: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, str]:
    """Return two cuts for people: with the numbers of columns only if nothing else tells them apart."""
    plain = without_numbers(was), without_numbers(now)
    first, second = plain if plain[0] != plain[1] else (was, now)
    return ", ".join(first), ", ".join(second)
