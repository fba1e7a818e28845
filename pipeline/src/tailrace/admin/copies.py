"""Pipelines that read another one's source into a topic of their own: backfills and shadows.

What such a pipeline rejects must not go back to its source by itself: there the live pipeline would read it, although
it may have delivered the record, and the copy would not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tailrace.config import Kafka
from tailrace.errors import NotAuthorized, OptionRefused
from tailrace.kafka.group_offsets import group_offsets

# The names that `admin/backfill.py` derives; one that ends with a date is a person's.
DATE = re.compile(r"(19|20)\d{6}")
_BACKFILL = re.compile(rf".+-backfill-(?!{DATE.pattern}$)[0-9a-f]{{8}}")
_SHADOW = "-shadow"  # how the names of the operator's shadows end


def is_backfill(pipeline: str) -> bool:
    """Return whether a pipeline's name is that of a backfill."""
    return _BACKFILL.fullmatch(pipeline) is not None


def shadow_group(pipeline: str) -> str:
    """Return the group whose offsets say where a shadow's comparison begins."""
    return f"tailrace.{pipeline}.shadow"


def refuse(kafka: Kafka, pipelines: Iterable[str]) -> None:
    """Refuse to send what these pipelines have rejected to its source, if one is a backfill or a shadow."""
    for name in sorted(pipelines):
        again = ""
        if is_backfill(name):
            again = "repeat the backfill into another topic: tailrace backfill FILE --into TOPIC"
        elif _is_shadow(kafka, name):
            again = "let the shadow begin again: stop it, then tailrace shadow begin FILE --live NAME --sink TOPIC"
        if again:
            kind = "a backfill" if is_backfill(name) else "a shadow"
            raise OptionRefused(
                f"{name!r}, which has rejected these records, is {kind}: in their source topic the live pipeline would "
                "read them again",
                kept="nothing was sent",
                then=f"correct what rejects them and {again}; or name a topic with --to",
            )


def _is_shadow(kafka: Kafka, pipeline: str) -> bool:
    """Return whether a shadow of this name has begun.

    Without a name that says so, it is known for as long as brokers keep where it began, and to who may describe that.
    """
    if pipeline.endswith(_SHADOW):
        return True
    try:
        return bool(group_offsets(kafka, shadow_group(pipeline)))
    except NotAuthorized:
        return False
