"""The difference of two outputs: records matched by key and value, then what is left by key alone.

Records near the ends of the compared range may belong to inputs outside it. Such a record may match one of the other
output, but it is no difference if it matches none. Both steps spread digests over files, so memory stays bounded.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SAMPLES = 5  # of each kind
_BUCKETS = 256
_HEAD = struct.Struct(">16s16sBBBB")  # the record's digest, the key's, the column, whether text, and its lengths
_TEXT = 120  # bytes of a key or a value that are kept to show it
_ROOM = 8 * 1024 * 1024  # bytes held before they are written


class Entry(NamedTuple):
    """A record of an output, and whether its input surely belongs to the range."""

    key: bytes | None
    value: bytes | None
    certain: bool = True


@dataclass(frozen=True)
class Sample:
    """A record that differs; None where that output has no record of the key, or an empty value."""

    kind: str
    key: str | None
    live: str | None
    shadow: str | None

    def as_dict(self) -> dict[str, str | None]:
        """Return the sample for JSON output."""
        return {"kind": self.kind, "key": self.key, "live": self.live, "shadow": self.shadow}


@dataclass(frozen=True)
class Difference:
    """The counts of records, and a few that differ."""

    live: int = 0
    shadow: int = 0
    equal: int = 0
    different: int = 0  # the same key, another value
    only_live: int = 0
    only_shadow: int = 0
    samples: tuple[Sample, ...] = ()

    @property
    def none(self) -> bool:
        """Whether the outputs are equal."""
        return not (self.different or self.only_live or self.only_shadow)

    def __str__(self) -> str:
        return (
            f"{self.equal:,} equal, {self.different:,} different, {self.only_live:,} only in live, "
            f"{self.only_shadow:,} only in shadow"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the counts and samples for JSON output."""
        names = ("live", "shadow", "equal", "different", "only_live", "only_shadow")
        return {
            **{name: getattr(self, name) for name in names},
            "samples": [each.as_dict() for each in self.samples],
        }


class _Record(NamedTuple):
    whole: bytes
    key: bytes
    column: int  # of counts: live for certain, live, shadow for certain, shadow
    shows: bool  # whether it has a key to show
    key_text: bytes
    text: bytes


class Pairs(NamedTuple):
    """How records of the same digest pair up: pairs with a certain record, and what is left in each column."""

    matched: int
    left: tuple[int, int, int, int]


def pair(counts: Iterable[int]) -> Pairs:
    """Pair live with shadow records, the certain ones first."""
    live, live_edge, shadow, shadow_edge = counts
    pairs = min(live + live_edge, shadow + shadow_edge)
    used = min(live, pairs), min(shadow, pairs)
    left = (live - used[0], live_edge - (pairs - used[0]), shadow - used[1], shadow_edge - (pairs - used[1]))
    return Pairs(max(used), left)


def compare(live: Iterable[Entry], shadow: Iterable[Entry]) -> Difference:
    """Compare two outputs."""
    with tempfile.TemporaryDirectory(prefix="tailrace-difference-") as folder:
        every, rest = _Buckets(Path(folder, "every")), _Buckets(Path(folder, "rest"))
        sizes = [0, 0]
        for side, entries in enumerate((live, shadow)):
            for each in entries:
                sizes[side] += each.certain
                made = _record(each, side)
                every.add(made.whole[0], made)
        equal = sum(_match(every, number, rest) for number in every.numbers())
        different = only_live = only_shadow = 0
        samples: list[Sample] = []
        for number in rest.numbers():
            found = _by_key(rest, number, samples)
            different, only_live, only_shadow = different + found[0], only_live + found[1], only_shadow + found[2]
    samples.sort(key=lambda each: (each.kind, each.key or ""))
    return Difference(sizes[0], sizes[1], equal, different, only_live, only_shadow, tuple(samples))


def _record(entry: Entry, side: int) -> _Record:
    whole = _digest(entry.key, entry.value)
    key = _digest(entry.key) if entry.key is not None else whole  # without a key, no two records correspond
    column = 2 * side + (not entry.certain)
    text = (entry.key or b"")[:_TEXT], (entry.value or b"")[:_TEXT]
    return _Record(whole, key, column, entry.key is not None, *text)


def _digest(*parts: bytes | None) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for each in parts:
        made.update(b"-" if each is None else b"%d:%b" % (len(each), each))
    return made.digest()


def _match(every: _Buckets, number: int, rest: _Buckets) -> int:
    """Match the records of a bucket by key and value; keep the others for the next step. Return the matches."""
    counts: dict[bytes, list[int]] = {}
    for each in every.records(number):
        counts.setdefault(each.whole, [0, 0, 0, 0])[each.column] += 1
    paired = {whole: pair(found) for whole, found in counts.items()}
    left = {whole: list(found.left) for whole, found in paired.items() if any(found.left)}
    for each in every.records(number) if left else ():
        remaining = left.get(each.whole)
        if remaining is not None and remaining[each.column]:
            remaining[each.column] -= 1
            rest.add(each.key[0], each)
    return sum(found.matched for found in paired.values())


def _by_key(rest: _Buckets, number: int, samples: list[Sample]) -> tuple[int, int, int]:
    """Count what is left of a bucket by key, and add samples of each kind."""
    counts: dict[bytes, list[int]] = {}
    for each in rest.records(number):
        counts.setdefault(each.key, [0, 0, 0, 0])[each.column] += 1
    different = only_live = only_shadow = 0
    shown: dict[bytes, str] = {}
    room = {kind: SAMPLES - sum(each.kind == kind for each in samples) for kind in ("different", "live", "shadow")}
    for key, found in counts.items():
        matched, left = pair(found)
        different, only_live, only_shadow = different + matched, only_live + left[0], only_shadow + left[2]
        kind = "different" if matched else "live" if left[0] else "shadow" if left[2] else ""
        if kind and room[kind]:
            room[kind] -= 1
            shown[key] = kind
    texts: dict[bytes, list[str | None]] = {key: [None, None, None] for key in shown}
    for each in rest.records(number) if shown else ():
        if each.key in texts:
            held = texts[each.key]
            held[0] = each.key_text.decode("utf-8", "backslashreplace") if each.shows else None
            held[1 + each.column // 2] = each.text.decode("utf-8", "backslashreplace")
    samples += [Sample(kind, *texts[key]) for key, kind in shown.items()]
    return different, only_live, only_shadow


class _Buckets:
    """Records in files of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._held: dict[int, bytearray] = {}
        self._size = 0

    def add(self, number: int, each: _Record) -> None:
        """Add a record to a bucket."""
        head = _HEAD.pack(each.whole, each.key, each.column, each.shows, len(each.key_text), len(each.text))
        self._held.setdefault(number, bytearray()).extend(head + each.key_text + each.text)
        self._size += len(head) + len(each.key_text) + len(each.text)
        if self._size > _ROOM:
            self._write()

    def _write(self) -> None:
        for number, held in self._held.items():
            with (self._folder / f"{number:02x}").open("ab") as file:
                file.write(held)
        self._held.clear()
        self._size = 0

    def numbers(self) -> list[int]:
        """Return the buckets that hold records."""
        self._write()
        return [number for number in range(_BUCKETS) if (self._folder / f"{number:02x}").exists()]

    def records(self, number: int) -> Iterator[_Record]:
        """Yield the records of a bucket."""
        with (self._folder / f"{number:02x}").open("rb") as file:
            while head := file.read(_HEAD.size):
                whole, key, column, shows, key_length, length = _HEAD.unpack(head)
                yield _Record(whole, key, column, bool(shows), file.read(key_length), file.read(length))
