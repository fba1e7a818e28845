"""Offsets as others write them down, and what it means when two places do not agree about them.

Everything here is pure. The two forms are that of jobs which keep the offsets of a batch's beginning in a node of
ZooKeeper (`0:38114984,1:38115057`), and a JSON document for files, export and import.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tailrace.errors import OffsetStoreUnusable
from tailrace.progress.stream_plan import AnyPlan

Place = tuple[str, int]
Positions = dict[Place, int]

VERSION = 1
LARGEST = 2**63 - 1
_NODE = re.compile(r"\d+:\d+(,\d+:\d+)*")
_KEPT = "nothing was read or written"


def named(place: Place) -> str:
    """A topic partition as messages show it."""
    return f"{place[0]}-{place[1]}"


def to_node(positions: Mapping[int, int]) -> str:
    """The offsets of one topic's partitions, as a node of ZooKeeper holds them."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def from_node(text: str, where: str) -> dict[int, int]:
    """The offsets that a node holds; an empty node holds none."""
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
    """The document of a file, of export and of import."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps({"version": VERSION, "pipeline": pipeline, "offsets": topics}, indent=2) + "\n"


def from_document(text: str, where: str) -> Positions:
    """The offsets of a document; what is wrong with it is said with its place."""
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
    """Where a batch begins; `ends` are its own, and where it reads nothing, that is where it begins too."""
    found = dict(ends)
    for each in sorted(plan.ranges, reverse=True):
        found[each.topic, each.partition] = min(found.get((each.topic, each.partition), each.start), each.start)
    return found


@dataclass(frozen=True)
class Known:
    """What the ledger knows: where the pipeline goes on, and where its last batch began."""

    positions: Mapping[Place, int]
    begins: Mapping[Place, int]


def differences(known: Known, stored: Mapping[Place, int]) -> list[str]:
    """What a store says and the ledger does not, one text for each topic partition.

    After a clean end the store holds where the pipeline goes on, after a kill where the last batch began. Anything else
    was written by somebody else, or not written when it should have been.
    """
    if not stored:
        return ["it has no offsets of this pipeline"]
    ours = set(known.positions)
    notes = []
    for place in sorted(ours | set(stored)):
        if place not in ours:
            notes.append(f"it has {named(place)} at {stored[place]}, which the pipeline does not read")
        elif place not in stored:
            notes.append(f"it has no offset of {named(place)}, which goes on at {known.positions[place]}")
        elif stored[place] not in {known.positions[place], known.begins.get(place)}:
            notes.append(f"it has {named(place)} at {stored[place]}, which goes on at {known.positions[place]}")
    return notes


def changed_by(before: Mapping[Place, int], after: Mapping[Place, int]) -> Iterable[tuple[Place, int | None, int]]:
    """What a change moves: the partition, from where (None: it had no position), to where."""
    for place, offset in sorted(after.items()):
        if before.get(place) != offset:
            yield place, before.get(place), offset


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _unusable(where: str, why: str) -> OffsetStoreUnusable:
    return OffsetStoreUnusable(f"{where}: {why}", kept=_KEPT, then="correct it, or: tailrace explain TR-311")
