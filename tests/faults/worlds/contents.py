"""The rest of a record: the bytes behind its head, its key, its partition and its headers.

A mistake could mix up any of them while every head still comes out once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from confluent_kafka import Message

from faults.checker import Array
from faults.reading import Heads
from faults.worlds.encodings import body, broken, encoded, heads_of
from faults.worlds.records import FACTOR, PAD, key_of
from faults.worlds.world import TAKE_OFFSETS, Encoding, Input, Strike, Work, World
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_REASON, HEADER_TOPIC

_SHOWN = 3
# Control records and records that were sent twice take offsets too, and a topic that is created again begins at 0.
_OTHER_OFFSETS = TAKE_OFFSETS | {Strike.RECREATE}


class Contents(Heads):
    """Keeps the heads of a topic's records, and checks everything else of each."""

    def __init__(self, world: World, source: str, *, rejected: bool) -> None:
        super().__init__(partial(heads_of, world))
        self._world, self._source, self._rejected = world, source, rejected
        self._places: dict[bytes, int] = {}  # of each key: the partition of its first record
        self.wrong = 0
        self.examples: list[str] = []

    def __call__(self, messages: list[Message]) -> Array:
        """Keep the heads, and check the rest."""
        heads = super().__call__(messages)
        for message, head in zip(messages, heads.tolist(), strict=True):
            problem = self._problem(message, *head)
            if problem:
                self.wrong += 1
                if len(self.examples) < _SHOWN:
                    where = f"{message.topic()}-{message.partition()} offset {message.offset()}"
                    self.examples.append(f"{where}: {problem}")
        return heads

    def _problem(self, message: Message, bad: int, partition: int, number: int) -> str:
        value, name = message.value() or b"", message.key() or b""
        input_number = number if self._rejected or self._world.work is Work.NONE else number // FACTOR
        known = key_of(self._world, input_number)
        if name != known:
            return f"the key {name!r} instead of {known!r}"
        wanted = self._value(bad, partition, number)
        if body(self._world, value) != wanted:
            return f"the value {value!r} instead of {wanted!r}"
        if self._rejected:
            return self._wrong_headers(dict(message.headers() or []), partition, number)
        place = self._places.setdefault(name, message.partition() or 0)
        return f"the key {name!r}, which partition {place} has too" if message.partition() != place else ""

    def _value(self, bad: int, partition: int, number: int) -> bytes:
        """Return the bytes that a record with this head must have."""
        if bad:
            return broken(self._world, partition, number)
        padded = self._rejected or self._world.work is Work.NONE or self._world.encoding is Encoding.RAW
        return encoded(self._world, partition, number, PAD if padded else None)

    def _wrong_headers(self, headers: dict[str, bytes | str | None], partition: int, number: int) -> str:
        """Return what is wrong with the headers of a rejected record."""
        wanted = {HEADER_TOPIC: self._source, HEADER_PARTITION: str(partition)}
        moved = self._world.replays is not None or _OTHER_OFFSETS.intersection(self._world.strikes)
        if self._world.input is Input.PLAIN and not moved:
            wanted[HEADER_OFFSET] = str(number)
        if not headers.get(HEADER_REASON):
            return "no reason"
        wrong = [name for name, text in wanted.items() if headers.get(name) != text.encode()]
        return f"the headers {', '.join(f'{each}={headers.get(each)!r}' for each in wrong)}" if wrong else ""


def found_wrong(topics: Iterable[Contents]) -> tuple[int, tuple[str, ...]]:
    """Add up what is wrong in the topics."""
    every = list(topics)
    return sum(each.wrong for each in every), tuple(text for each in every for text in each.examples)
