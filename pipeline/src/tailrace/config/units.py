"""Times and sizes as people write them: `1s`, `500ms`, `2m`; `64MB`, `1GiB`; `2026-11-20T10:00:00Z`.

The configuration and the command line read them the same way.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def seconds(text: str) -> float | None:
    """Return the time in seconds, or None if the text is not a time; a bare number means seconds."""
    found = _WRITTEN.fullmatch(text.strip())
    factor = _TIMES.get(found[2]) if found else None
    return None if found is None or factor is None else float(found[1]) * factor


def size(text: str) -> int | None:
    """Return the size in bytes, or None if the text is not a size or not a whole number of bytes."""
    found = _WRITTEN.fullmatch(text.strip())
    factor = _SIZES.get(found[2].lower()) if found else None
    if found is None or factor is None:
        return None
    count = float(found[1]) * factor
    return int(count) if count.is_integer() else None


def moment(text: str) -> datetime | None:
    """Read a time in ISO 8601, of UTC if it names no zone; None if the text is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
