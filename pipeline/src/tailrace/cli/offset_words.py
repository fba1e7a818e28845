"""The words of `tailrace offsets`: `orders:0=1200` for a position, and a time as ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from tailrace.config import units
from tailrace.errors import OptionRefused

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.config import Pipeline
    from tailrace.progress.positions import Place

UNCHANGED = "nothing was changed"


def unchanged(pipeline: Pipeline, file: Path, *, accepts: bool) -> tuple[str, str]:
    """Say that a change has nothing to change; return that and the next command."""
    if not accepts:
        return f"unchanged: {pipeline.pipeline} has these offsets already", f"tailrace offsets show {file}"
    sink = f"the sink {pipeline.sink.topic!r}" if pipeline.sink.topic else "sink topics that each row names"
    return (
        f"unchanged: the last plan of {pipeline.pipeline} has {sink} already",
        f"to accept another sink, set sink.topic in {file} and repeat the command; otherwise: tailrace run {file}",
    )


def assignment(text: str) -> tuple[Place, int]:
    """Return the topic partition and the offset of TOPIC:PARTITION=OFFSET."""
    found = re.fullmatch(r"([A-Za-z0-9._-]+):(\d{1,9})=(\d{1,18})", text)
    if found is None:
        raise OptionRefused(
            f"{text!r} is not of the form TOPIC:PARTITION=OFFSET", kept=UNCHANGED, then="write it as orders:0=1200"
        )
    return (found[1], int(found[2])), int(found[3])


def moment(text: str, option: str = "--to-time") -> datetime:
    """Return a time; one without a zone is UTC."""
    found = units.moment(text)
    if found is None:
        raise OptionRefused(
            f"{option} {text!r} is not a time",
            kept=UNCHANGED,
            then=f"write it in ISO 8601, UTC unless a zone is given: {option} 2026-11-20T10:00:00Z",
        )
    return found
