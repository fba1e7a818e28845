"""Where a change of offsets leads: the new offset of each partition, and what that does to the records in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tailrace.config import Pipeline
from tailrace.errors import ConfigInvalid, KafkaFailed, OffsetsOutOfRange
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import denied
from tailrace.kafka.leader_ends import told_by_leaders
from tailrace.kafka.rights import Operation, on_topic
from tailrace.progress.positions import Place, Positions, changed_by, named

_UNCHANGED = "nothing was changed"


def present(pipeline: Pipeline, cluster: Cluster, before: Positions) -> set[Place]:
    """Return the partitions that the pipeline reads now, with those that a broker which lags does not show yet."""
    found = set(source.partitions_of(pipeline, cluster))
    topics = {topic for topic, _ in found}
    late = {place for place in before.keys() - found if place[0] in topics}
    return found | late.difference(source.missing(pipeline, late, cluster)[1] if late else ())


def targets(
    pipeline: Pipeline, cluster: Cluster, before: Positions, wanted: Mapping[Place, int], *, alone: bool = False
) -> Positions:
    """Return the new offsets, which must exist; with `alone` they replace all others. Missing topics take none."""
    there = present(pipeline, cluster, before)
    unknown = sorted(set(wanted) - there)
    if unknown:
        raise ConfigInvalid(
            f"the pipeline does not read {', '.join(map(named, unknown[:5]))}",
            kept=_UNCHANGED,
            then="`tailrace offsets show FILE` lists what it reads",
        )
    # To the log's end: a pipeline that has read uncommitted records may be behind an open transaction.
    first, last = cluster.earliest(wanted), cluster.latest(wanted)
    for place, offset in sorted(wanted.items()):
        if not first[place] <= offset <= last[place]:
            raise OffsetsOutOfRange(
                f"{named(place)}: {offset} was requested, but the topic holds {first[place]} to {last[place]}",
                kept=_UNCHANGED,
                then="choose an offset in that range",
            )
    if not alone:
        return {place: offset for place, offset in before.items() if place in there} | dict(wanted)
    # What is only hidden just now, or not shown by a broker yet, would be read from its beginning once it is seen.
    kept = {place for place in before.keys() - wanted.keys() if source.reads(pipeline, place[0])}
    hidden, gone = source.missing(pipeline, kept, cluster) if kept else (frozenset[str](), ())
    if hidden:
        raise denied(
            f"the ledger has offsets of {', '.join(sorted(hidden)[:5])}, which may not be described",
            [on_topic(Operation.READ, topic) for topic in sorted(hidden)],
            _UNCHANGED,
        )
    if late := sorted(kept.difference(gone)):
        raise KafkaFailed(
            f"a broker did not show {', '.join(map(named, late[:5]))} yet, of which the ledger has offsets",
            kept=_UNCHANGED,
            then="repeat this command",
        )
    return dict(wanted)


def left_out(pipeline: Pipeline, before: Positions, target: Positions, *, alone: bool = False) -> Positions:
    """Return the offsets to keep of topics that are missing, or that the configuration no longer reads.

    A change that stands `alone` forgets those that are missing.
    """
    kept = {place: offset for place, offset in before.items() if place not in target}
    return {place: offset for place, offset in kept.items() if not (alone and source.reads(pipeline, place[0]))}


def ends_of(
    pipeline: Pipeline, cluster: Cluster, places: Collection[Place], read: Mapping[Place, int], earliest: bool
) -> Positions:
    """Return the first offsets of the topics, or those after the last record, which do not lie before what was `read`.

    A pipeline that has read uncommitted records may be behind an open transaction.
    """
    if earliest:
        return cluster.earliest(places)
    found = told_by_leaders(cluster, places, lambda: source.ends(pipeline, places, cluster), _UNCHANGED)
    last = cluster.latest(places)
    return {place: max(at, now) if (now := read.get(place, at)) <= last[place] else at for place, at in found.items()}


def earlier(before: Mapping[Place, int], found: Mapping[Place, int]) -> Positions:
    """Return only the offsets before the pipeline's position: rewinding never moves forward.

    A partition that has no position yet is left out, because a start reads it from its beginning.
    """
    return {place: offset for place, offset in found.items() if place in before and offset < before[place]}


@dataclass(frozen=True)
class Move:
    """What a change does to one topic partition."""

    place: Place
    before: int | None
    after: int

    @property
    def meaning(self) -> str:
        """The effect on the records in between."""
        if self.before is None:
            return "new"
        by = self.after - self.before
        return f"skips {by:,}" if by > 0 else f"reads {-by:,} again"

    def as_dict(self) -> dict[str, object]:
        """Return the move for JSON output."""
        return {"topic": self.place[0], "partition": self.place[1], "from": self.before, "to": self.after}


def moves(before: Mapping[Place, int], after: Mapping[Place, int]) -> list[Move]:
    """Return the moves of a change."""
    return [Move(place, old, new) for place, old, new in changed_by(before, after)]
