"""The offset formats of external stores, and the comparison of a store with the ledger.

All functions here are pure. There are two formats: a ZooKeeper node with the offsets at which a batch begins, as older
jobs write it (`0:38114984,1:38115057`), and a JSON document for files, export and import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.errors import OffsetStoreUnusable
from tailrace.progress.plan import Plan
from tailrace.progress.stream_plan import AnyPlan

Place = tuple[str, int]
Positions = dict[Place, int]

VERSION = 1
LARGEST = 2**63 - 1
_SHOWN = 5
_NODE = re.compile(r"\d+:\d+(,\d+:\d+)*")
_KEPT = "nothing was read or written"


def named(place: Place) -> str:
    """Format a topic partition for messages."""
    return f"{place[0]}-{place[1]}"


def listed(texts: Sequence[str]) -> str:
    """Join the first texts, and say how many are left out."""
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def bounded(ends: Mapping[Place, int], until: Mapping[Place, int]) -> Positions:
    """Return the ends up to which a bounded run may read; a place without a bound is not read."""
    return {place: min(end, until.get(place, 0)) for place, end in ends.items()}


def to_node(positions: Mapping[int, int]) -> str:
    """Format the offsets of one topic's partitions for a ZooKeeper node."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def from_node(text: str, where: str) -> dict[int, int]:
    """Parse the offsets of a node; an empty node has none."""
    content = text.strip()
    if not content:
        return {}
    if not _NODE.fullmatch(content):
        raise _unusable(where, f"{_short(content)} is not of the form `0:38114984,1:38115057`")
    pairs = [each.split(":") for each in content.split(",")]
    found = {int(partition): int(offset) for partition, offset in pairs}
    if len(found) != len(pairs):
        raise _unusable(where, f"{_short(content)} names a partition twice")
    if max(found.values()) > LARGEST:
        raise _unusable(where, f"{_short(content)} has an offset that no topic can have")
    return found


def to_document(pipeline: str, positions: Mapping[Place, int]) -> str:
    """Format the document for files, export and import."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps({"version": VERSION, "pipeline": pipeline, "offsets": topics}, indent=2) + "\n"


def from_document(text: str, where: str) -> Positions:
    """Parse the offsets of a document; an error names `where` and what is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _unusable(where, f"it is not JSON ({error})") from error
    if not isinstance(data, dict) or not isinstance(data.get("offsets"), dict):
        raise _unusable(where, "it has no object `offsets`")
    if data.get("version") != VERSION:
        raise _unusable(where, f"its version is {data.get('version')!r}, and {VERSION} is known")
    found: Positions = {}
    for topic, parts in data["offsets"].items():
        if not isinstance(parts, dict):
            raise _unusable(where, f"offsets.{topic} is not an object of partitions")
        for partition, offset in parts.items():
            if not re.fullmatch(r"0|[1-9]\d{0,8}", partition):
                raise _unusable(where, f"offsets.{topic} has {partition!r}, which is not a partition's number")
            if type(offset) is not int or not 0 <= offset <= LARGEST:
                raise _unusable(where, f"offsets.{topic}.{partition} is {_short(str(offset))}, which is not an offset")
            found[topic, int(partition)] = offset
    return found


def begins(plan: AnyPlan, ends: Mapping[Place, int]) -> Positions:
    """Return where a batch begins; a partition that it does not read begins at its own entry in `ends`."""
    found = dict(ends)
    for each in sorted(plan.ranges, reverse=True):
        found[each.topic, each.partition] = min(found.get((each.topic, each.partition), each.start), each.start)
    return found


def seen_again(plan: AnyPlan, ids: Mapping[str, tuple[str, int]]) -> Positions:
    """Return where the topics with these ids continue whose offsets the plan keeps without reading them."""
    away = plan.away if isinstance(plan, Plan) else {}
    found = {name for name, _ in ids.values()} & away.keys()
    return {place: offset for name in found for place, offset in away[name].items()}


def ends_of_read(plan: AnyPlan) -> Positions:
    """Return where a batch leaves the partitions that it reads; the others may be hidden, and not be asked for."""
    ends = plan.ends
    return {each.place: ends[each.place] for each in plan.ranges if each.place in ends}


@dataclass(frozen=True)
class Known:
    """The ledger's knowledge: where the pipeline continues, and where its last batch began."""

    positions: Mapping[Place, int]
    begins: Mapping[Place, int]


def differences(known: Known, stored: Mapping[Place, int]) -> list[str]:
    """List where a store contradicts the ledger, one text for each topic partition.

    After a clean end the store holds where the pipeline continues; after a kill, where the last batch began. Anything
    else was written by somebody else, or not written when it should have been.
    """
    if not stored:
        return ["it has no offsets of this pipeline"]
    ours = set(known.positions)
    notes = []
    for place in sorted(ours | set(stored)):
        if place not in ours:
            notes.append(f"it has {named(place)} at {stored[place]}, which the pipeline does not read")
        elif place not in stored:
            notes.append(f"it has no offset of {named(place)}, which continues at {known.positions[place]}")
        elif stored[place] not in {known.positions[place], known.begins.get(place)}:
            notes.append(f"it has {named(place)} at {stored[place]}, which continues at {known.positions[place]}")
    return notes


def changed_by(before: Mapping[Place, int], after: Mapping[Place, int]) -> Iterable[tuple[Place, int | None, int]]:
    """Yield what a change moves: the partition, its old position (None: it had none), its new position."""
    for place, offset in sorted(after.items()):
        if before.get(place) != offset:
            yield place, before.get(place), offset


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _unusable(where: str, why: str) -> OffsetStoreUnusable:
    return OffsetStoreUnusable(f"{where}: {why}", kept=_KEPT, then="correct it, or: tailrace explain TR-311")
