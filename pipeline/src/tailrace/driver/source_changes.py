"""Changes in the source between two looks: new partitions, topics created again, offsets that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tailrace import errors
from tailrace.driver.look import Seen
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.topics import recreation

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
    recreated: tuple[str, ...] = ()  # topics that have another id than before
    behind: tuple[Short, ...] = ()
    gone: tuple[tuple[str, int], ...] = ()

    @property
    def any(self) -> bool:
        """Whether positions must move."""
        return bool(self.new or self.behind or self.gone)

    @property
    def reports(self) -> list[str]:
        """The changes that a user must know of, a line each; new partitions are no loss."""
        lines = [f"{topic} was deleted and created again; reading it from its beginning" for topic in self.recreated]
        for (topic, number), position, end in self.behind:
            what = f"{topic}-{number}: the next offset to read is {position}, and the topic ends at {end}"
            lines.append(f"{what}; continuing at {end}")
        return lines + [f"{topic}-{number} no longer exists" for topic, number in self.gone]

    def refuse_loss(self) -> None:
        """Raise an error if records that were not read may be lost."""
        if self.recreated:
            raise recreation(self.recreated, "since the last batch", _DELIVERED)
        for (topic, number), position, end in self.behind:
            raise errors.OffsetsOutOfRange(
                f"{topic}-{number}: the next offset to read is {position}, and the topic ends at {end}",
                kept=_DELIVERED,
                then="restore the topic, or set source.on_data_loss: reset",
            )

    def moved(self, positions: TopicPartitions, earliest: TopicPartitions) -> TopicPartitions:
        """Return the positions to continue at; `earliest` has the first offset of each new partition."""
        kept = {place: offset for place, offset in positions.items() if place not in self.gone}
        return kept | {place: earliest[place] for place in self.new} | {each.place: each.end for each in self.behind}


def changes(positions: TopicPartitions, ids: Mapping[str, str], seen: Seen) -> Changes:
    """Compare the positions and the topics' ids until now with a look at the source."""
    recreated = tuple(sorted(topic for topic, name in seen.topics.items() if ids.get(topic, name) != name))
    new = tuple(place for place in seen.ends if place not in positions or place[0] in recreated)
    behind = tuple(
        Short(place, positions[place], end)
        for place, end in seen.ends.items()
        if place in seen.short and place in positions and end < positions[place] and place not in new
    )
    return Changes(new, recreated, behind, tuple(sorted(set(positions) - set(seen.ends))))
