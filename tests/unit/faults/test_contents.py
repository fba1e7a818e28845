"""The check of what a record contains besides its head finds each planted mistake."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from faults.records import HEAD, key
from faults.worlds.contents import Contents, found_wrong
from faults.worlds.records import FACTOR, PAD, values
from faults.worlds.world import Encoding, Input, Place, Strike, Work, World

WORLD = World(
    seed=1, place=Place.THREADS, work=Work.SAME, encoding=Encoding.RAW, input=Input.PLAIN, counts=(20,),
    outputs=2, bad_every=7, max_records=10, sink_partitions=None, source_partitions=None, strikes=(), crashes=(),
)  # fmt: skip


@dataclass
class Sent:
    """A record as a consumer returns it."""

    v: bytes
    k: bytes
    p: int = 0
    h: tuple[tuple[str, bytes], ...] = ()

    def value(self) -> bytes:
        """Return its value."""
        return self.v

    def key(self) -> bytes:
        """Return its key."""
        return self.k

    def partition(self) -> int:
        """Return its partition of the sink."""
        return self.p

    def headers(self) -> list[tuple[str, bytes]]:
        """Return its headers."""
        return list(self.h)

    def topic(self) -> str:
        """Return its topic."""
        return "out"

    def offset(self) -> int:
        """Return its offset, which does not matter here."""
        return 0


def out(number: int, pad: str = PAD, **more: Any) -> Sent:
    """Return the first output of an input record."""
    head = np.array([(0, 0, number * FACTOR)], dtype=HEAD).tobytes()
    return Sent(**{"v": head + pad.encode(), "k": key(number), "p": number % 2, **more})


def problems(*sent: Sent, world: World = WORLD, rejected: bool = False) -> list[str]:
    """Return what the check says of these records."""
    contents = Contents(world, "in", rejected=rejected)
    made: Any = list(sent)
    contents(made)
    wrong, examples = found_wrong([contents])
    assert wrong == len(examples)
    assert contents.count == len(sent)
    return [each.partition(": ")[2] for each in examples]


def test_correct_records_pass() -> None:
    """In each encoding, with and without a function, and rejected."""
    assert problems(*(out(number) for number in range(20))) == []
    for encoding in Encoding:
        world = replace(WORLD, encoding=encoding, work=Work.NONE, bad_every=0)
        given = values(world, 0, 0, 20)
        assert problems(*(Sent(v, key(n), n % 2) for n, v in enumerate(given)), world=world) == []


def test_other_bytes_behind_the_head_are_found() -> None:
    """The head alone is right."""
    assert problems(out(1), out(2, pad=PAD[1:])) != []


def test_key_of_another_record_is_found() -> None:
    """As if columns had been cut at different places."""
    assert problems(out(1, k=key(2))) == [f"the key {key(2)!r} instead of {key(1)!r}"]


def test_key_in_two_partitions_is_found() -> None:
    """Whoever reads one partition would miss a part of the key's records."""
    assert problems(out(1), out(65)) == []
    assert problems(out(1), out(65, p=0)) == [f"the key {key(1)!r}, which partition 1 has too"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("tailrace.source.offset", b"7"), ("tailrace.source.partition", b"1"), ("tailrace.source.topic", b"out")],
)
def test_wrong_header_of_a_rejected_record_is_found(name: str, text: bytes) -> None:
    """It would lead a person to another record."""
    world = replace(WORLD, encoding=Encoding.JSON)
    value = values(world, 0, 6, 7)[0]
    right = {
        "tailrace.reason": b"not json",
        "tailrace.source.topic": b"in",
        "tailrace.source.partition": b"0",
        "tailrace.source.offset": b"6",
    }
    assert problems(Sent(value, key(6), 0, tuple(right.items())), world=world, rejected=True) == []
    wrong = right | {name: text}
    found = problems(Sent(value, key(6), 0, tuple(wrong.items())), world=world, rejected=True)
    assert found == [f"the headers {name}={text!r}"]
    again = replace(world, strikes=(Strike.RECREATE,))
    moved = Sent(value, key(6), 0, tuple((right | {"tailrace.source.offset": b"2"}).items()))
    assert problems(moved, world=again, rejected=True) == []
    del right["tailrace.reason"]
    assert problems(Sent(value, key(6), 0, tuple(right.items())), world=world, rejected=True) == ["no reason"]
