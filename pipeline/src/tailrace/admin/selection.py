"""The records of a rejected topic that a replay sends, and the marks that say which ones were sent before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from tailrace.admin.rejected import Place, is_output, number
from tailrace.errors import KafkaFailed, OptionRefused
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_PARTITION, HEADER_PIPELINE, HEADER_TOPIC


@dataclass(frozen=True)
class Marks:
    """What was sent of one partition: all before an offset, and some ranges (both ends included) beyond it."""

    before: int = 0
    beyond: tuple[tuple[int, int], ...] = ()

    def __contains__(self, offset: int) -> bool:
        return offset < self.before or any(first <= offset <= last for first, last in self.beyond)

    @property
    def metadata(self) -> str:
        """The ranges in the form committed with the offset."""
        return ",".join(f"{first}-{last}" for first, last in self.beyond)

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Self:
        """Parse the marks from a committed offset; empty if nothing is committed."""
        if offset < 0:
            return cls()
        try:
            pairs = [each.split("-") for each in (metadata or "").rstrip("\0").split(",") if each]
            return cls(offset, tuple((int(first), int(last)) for first, last in pairs))
        except ValueError:
            raise KafkaFailed(
                f"the marks of earlier replays cannot be read: {metadata!r} at offset {offset}",
                kept="nothing was sent",
                then="the group's offsets were set by another tool; reset them with kafka-consumer-groups.sh",
            ) from None

    def after(self, offsets: Iterable[int], sent: Callable[[int], bool]) -> Marks:
        """Return the marks with `sent` added; `offsets` are those of the partition's records, in order.

        Another replay may have sent records that arrived after they were listed: ranges behind the list are kept.
        """
        before, ranges, end = self.before, list[list[int]](), -1
        gapless, joined = True, False  # every record so far was sent; the previous one was, behind one that was not
        for offset in offsets:
            done = offset in self or sent(offset)
            if not done:
                gapless = False
            elif gapless:
                before = max(before, offset + 1)
            elif joined:
                ranges[-1][1] = offset
            else:
                ranges.append([offset, offset])
            joined, end = done and not gapless, offset
        for first, last in self.beyond:
            if first > end:
                ranges.append([first, last])
            elif last > end and gapless:
                before = last + 1
            elif last > end:
                ranges[-1][1] = last
        return Marks(before, tuple((first, last) for first, last in ranges))


class Home(NamedTuple):
    """Where to send a record; the partition is known only if it goes back to its source."""

    topic: str
    partition: int | None


@dataclass(frozen=True)
class Selection:
    """The records of a rejected topic to replay, and all offsets in the topic, which the marks need."""

    wanted: Mapping[Place, Home]
    homeless: Mapping[Place, bool]  # wanted too, but without --to: outputs (true), and records without a source
    offsets: Mapping[int, list[int]]
    pipelines: frozenset[str]

    @property
    def topics(self) -> set[str]:
        """The topics to send to."""
        return {each.topic for each in self.wanted.values()}

    def pipeline(self) -> str:
        """Return the one pipeline the records belong to, which is part of the marks' name."""
        if len(self.pipelines) != 1:
            raise OptionRefused(
                f"the records were rejected by {len(self.pipelines)} pipelines: {sorted(self.pipelines)}",
                kept="nothing was sent",
                then="name the pipeline's FILE instead of --topic, or single records as PARTITION:OFFSET",
            )
        return next(iter(self.pipelines))

    def without(self, marks: Mapping[int, Marks]) -> Selection:
        """Return the selection without the records replayed before."""
        new = {place: home for place, home in self.wanted.items() if place.offset not in marks[place.partition]}
        return replace(self, wanted=new)

    def marks(self, before: Mapping[int, Marks], partitions: int, last: Mapping[int, int]) -> dict[int, Marks]:
        """Return the marks after sending the wanted records up to the `last` offset of each partition.

        They are for every partition, so that none of them expires.
        """

        def sent(number: int) -> Callable[[int], bool]:
            until = last.get(number, -1)
            return lambda offset: offset <= until and Place(number, offset) in self.wanted

        return {
            number: before.get(number, Marks()).after(self.offsets.get(number, ()), sent(number))
            for number in range(partitions)
        }

    def outgoing(self, records: Iterable[Message], known: Mapping[str, int]) -> Iterator[tuple[Message, Home] | None]:
        """Yield the wanted records and their destinations; `known` is each topic's partition count.

        Yield None for another record: a transaction is open meanwhile. Nothing is read behind the last wanted one.
        """
        left = len(self.wanted)
        for message in records:
            home = self.wanted.get(Place(message.partition, message.offset))
            if home is None:
                yield None
                continue
            there = home.partition is not None and home.partition < known[home.topic]
            yield message, home if there else Home(home.topic, None)
            left -= 1
            if not left:
                return


def select(records: Iterable[Message], wanted: Callable[[Message], bool], to: str | None) -> Selection:
    """Choose the records to replay, without keeping their bytes, which may be large."""
    chosen: dict[Place, Home] = {}
    homeless: dict[Place, bool] = {}
    offsets: dict[int, list[int]] = {}
    pipelines: set[str] = set()
    for message in records:
        place = Place(message.partition, message.offset)
        offsets.setdefault(place.partition, []).append(place.offset)
        if wanted(message):
            pipelines.update(filter(None, [message.text(HEADER_PIPELINE)]))
            source = None if is_output(message) else message.text(HEADER_TOPIC)
            topic = to or source
            if topic is None:
                homeless[place] = is_output(message)
            else:
                partition = number(message.text(HEADER_PARTITION)) if topic == source else None
                chosen[place] = Home(topic, partition)
    return Selection(chosen, homeless, offsets, frozenset(pipelines))
