"""Changes in the source between two looks: new partitions, topics created again, offsets that are gone.

A topic that is missing may only be hidden: without the right to describe it, the brokers leave it out, and a look
leaves it out while its id is in doubt. Its positions are kept with its id, and it is read from there once it is seen
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace import errors
from tailrace.driver.choose import read_whole
from tailrace.driver.look import Seen
from tailrace.gateway import Written
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.topics import recreation
from tailrace.progress.plan import Away, Range
from tailrace.progress.positions import listed, named
from tailrace.status.events import Noted, OffsetsReset

_DELIVERED = "everything that was delivered; nothing more was read"


class Short(NamedTuple):
    """A partition whose log ends before the next offset to read."""

    place: tuple[str, int]
    position: int
    end: int


@dataclass(frozen=True)
class Changes:
    """The difference between what a run has read and what a look has found."""

    new: tuple[tuple[str, int], ...] = ()  # partitions to read from their beginning
    added: tuple[str, ...] = ()  # topics that the pipeline has not read before
    recreated: tuple[str, ...] = ()  # topics that have another id than before
    behind: tuple[Short, ...] = ()
    gone: tuple[tuple[str, int], ...] = ()
    hidden: Away = field(default_factory=dict)  # positions of topics that were seen until now
    back: TopicPartitions = field(default_factory=dict)  # where topics continue that are seen again
    away: Away = field(default_factory=dict)  # every position that is kept

    @property
    def any(self) -> bool:
        """Whether positions must move."""
        return bool(self.new or self.behind or self.gone or self.hidden or self.back or self.recreated)

    @property
    def reports(self) -> list[str]:
        """The losses that a user must know of, a line each; new partitions are none."""
        lines = [f"{topic} was deleted and created again; reading it from its beginning" for topic in self.recreated]
        for (topic, number), position, end in self.behind:
            what = f"{topic}-{number}: the next offset to read is {position}, and the topic ends at {end}"
            lines.append(f"{what}; continuing at {end}")
        return lines + [f"{topic}-{number} no longer exists" for topic, number in self.gone]

    def events(self, earliest: TopicPartitions, *, bounded: bool = False) -> list[OffsetsReset | Noted]:
        """Return the events that report the changes; a `bounded` run does not read new topics."""
        found: list[OffsetsReset | Noted] = [OffsetsReset(what) for what in self.reports]
        found += [hidden(topic) for topic in _names(self.hidden)]
        found += [] if bounded else [self._added(topic, earliest) for topic in self.added]
        seen = sorted({topic for topic, _ in self.back})
        return found + [Noted(f"the topic {topic!r} is seen again; reading continues at its offsets") for topic in seen]

    def _added(self, topic: str, earliest: TopicPartitions) -> Noted:
        places = sorted(place for place in self.new if place[0] == topic)
        return Noted(
            f"the topic {topic!r} is new to this pipeline, and is read from its beginning "
            f"({listed([f'{named(place)} at {earliest[place]}' for place in places])}): "
            "auto.offset.reset is for first starts"
        )

    def refuse_loss(self) -> None:
        """Raise an error if records that were not read may be lost."""
        if self.recreated:
            raise recreation(self.recreated, "since the last batch", _DELIVERED)
        if self.gone:
            raise errors.SourceChanged(
                f"{', '.join(f'{topic}-{number}' for topic, number in self.gone[:5])} no longer exists",
                kept=_DELIVERED,
                then="restore the topic, or set source.on_data_loss: reset to continue without it",
            )
        for (topic, number), position, end in self.behind:
            raise errors.OffsetsOutOfRange(
                f"{topic}-{number}: the next offset to read is {position}, and the topic ends at {end}",
                kept=_DELIVERED,
                then="restore the topic, or set source.on_data_loss: reset",
            )

    def moved(self, positions: TopicPartitions, earliest: TopicPartitions) -> TopicPartitions:
        """Return the positions to continue at; `earliest` has the first offset of each new partition."""
        left = {*self.gone, *(place for places in self.hidden.values() for place in places)}
        kept = {place: offset for place, offset in positions.items() if place not in left}
        new = {place: earliest[place] for place in self.new}
        return kept | self.back | new | {each.place: each.end for each in self.behind}


def changes(
    positions: TopicPartitions,
    ids: Mapping[str, str],
    seen: Seen,
    away: Away | None = None,
    until: TopicPartitions | None = None,
) -> Changes:
    """Compare the positions and the topics' ids until now with a look at the source.

    A topic that a bounded run has read to its bound may be deleted: its offsets are kept, as those of a hidden one.
    """
    before = away or {}
    whole = read_whole(positions, until or {}, before)
    if not whole:
        return _changes(positions, ids, seen, before)
    done = {name: places for name, places in before.items() if whole & {topic for topic, _ in places}}
    left = {name: places for name, places in before.items() if name not in done}
    rest = {place: offset for place, offset in positions.items() if place[0] not in whole}
    found = _changes(rest, ids, seen.without(whole), left)
    gone = sorted(topic for topic in whole & ids.keys() if seen.topics.get(topic) != ids[topic])
    hidden = {ids[topic]: {place: at for place, at in positions.items() if place[0] == topic} for topic in gone}
    hidden = {name: places for name, places in hidden.items() if places}
    return replace(found, hidden={**found.hidden, **hidden}, away={**done, **found.away, **hidden})


def _changes(positions: TopicPartitions, ids: Mapping[str, str], seen: Seen, before: Away) -> Changes:
    again = {topic for topic, name in seen.topics.items() if ids.get(topic, name) != name}
    again |= {topic for name, places in before.items() for topic, _ in places if seen.topics.get(topic, name) != name}
    returned = set(seen.topics.values()) & before.keys()
    back = {place: offset for name in sorted(returned) for place, offset in before[name].items()}
    new = tuple(place for place in seen.ends if place[0] in again or place not in positions.keys() | back.keys())
    read = again | {topic for topic, _ in [*positions, *back]}
    read |= {topic for places in before.values() for topic, _ in places}
    behind = tuple(
        Short(place, positions[place], end)
        for place, end in seen.ends.items()
        if place in seen.short and place in positions and end < positions[place] and place not in new
    )
    absent = {place: offset for place, offset in positions.items() if place not in seen.ends}
    lost = again | seen.deleted
    kept = {
        name: places
        for name, places in before.items()
        if name not in returned and not lost & {topic for topic, _ in places}
    }
    left = {
        ids[name]: {place: offset for place, offset in absent.items() if place[0] == name}
        for name in sorted({topic for topic, _ in absent} & ids.keys() - seen.topics.keys() - lost)
    }
    gone = {place for place in absent if place[0] in lost or place[0] not in ids}
    gone |= {place for places in before.values() for place in places if place[0] in seen.deleted}
    added = tuple(sorted({topic for topic, _ in new} - read))
    return Changes(new, added, tuple(sorted(again)), behind, tuple(sorted(gone)), left, back, kept | left)


def hidden(topic: str) -> Noted:
    """Return the note on a topic that was read, and is not shown."""
    return Noted(
        f"the topic {topic!r} no longer exists, may not be described, or is shown with another id; its offsets are "
        "kept, and reading continues there when it is seen again"
    )


def losses(written: Iterable[Written]) -> list[OffsetsReset]:
    """Return the reports of planned records that a batch did not find any more."""
    return [loss(Range.parse(text), "no longer exist") for each in written for text in each.lost]


def loss(lost: Range, why: str) -> OffsetsReset:
    """Return the report of a planned range that is lost."""
    offsets = f"{lost.end - lost.start} planned offsets, {lost.start} to {lost.end - 1}"
    return OffsetsReset(f"{lost.topic}-{lost.partition}: {offsets}, {why}")


def unread(topic: str, *, kept: bool) -> Noted:
    """Return the note on a topic that the configuration has left out since the last batch."""
    what = "kept, and reading continues there if it is configured again" if kept else "dropped: it was deleted"
    return Noted(f"the configuration no longer reads the topic {topic!r}; its offsets are {what}")


def _names(away: Away) -> Iterable[str]:
    return sorted({topic for places in away.values() for topic, _ in places})
