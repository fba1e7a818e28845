"""The proof of exactly-once: an independent reader that counts what went in and what came out.

It shares no code with the source or the sink, so it cannot share their mistakes. A plain consumer reads both topics,
and ids are compared in buckets on disk, so memory is bounded however long the topics are.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tailrace.config import Isolation, Kafka
from tailrace.kafka.reader import LIMIT, By, Identity, Message, read
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_STAGE, HEADER_TOPIC

__all__ = ["By", "Comparison", "Examples", "Identity", "Message", "Times", "compare", "read", "verify"]

MEMORY = 64 * 1024 * 1024  # bytes for the comparison, in addition to the consumer's
EXAMPLES = 5
_DIGEST = 16  # bytes; two of 10**12 ids share a digest with a probability of 10**-15
_TEXT = 200  # bytes of an id that are kept to show it
_OUTPUTS = {b"encode", b"sink"}  # the stages at which one output is rejected, and not an input record
_COST = 250  # bytes per digest in a Counter, at the moment its table grows


@dataclass(frozen=True)
class Times:
    """How many outputs an input record must lead to: a number, or where the record says so."""

    number: int = 1
    where: Identity | None = None

    @classmethod
    def parse(cls, text: str) -> Times:
        """Parse the text form; the ValueError lists the valid forms."""
        if text.isdecimal():
            return cls(int(text))
        if text == By.KEY:
            raise ValueError("how many outputs there must be is a number, or at header:NAME or json:$.a.b")
        return cls(where=Identity.parse(text))

    def of(self, message: Message) -> int | None:
        """Return the number for a record; None if it does not say one."""
        if self.where is None:
            return self.number
        found = self.where.of(message)
        return int(found) if found is not None and found.isdigit() else None


ONE: Final = Times()


@dataclass(frozen=True)
class Examples:
    """A few ids of each kind, to search for."""

    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The counts. For identified records, in + duplicated + unexpected = out + rejected + lost, always.

    If an input record leads to several outputs, each of them counts, and a rejected input record as all of its own.
    """

    in_: int
    out: int
    rejected: int
    lost: int  # input records that did not come out
    duplicated: int  # surplus copies of ids that did go in
    unexpected: int  # records that came out with an id that never went in
    unidentified: int  # records on either side without an id, which cannot be compared
    examples: Examples = Examples()
    wanted: int | None = None  # how many outputs the input must lead to, if not one for each record

    @property
    def exact(self) -> bool:
        """Whether each input record came out exactly once, and nothing else did."""
        return not (self.lost or self.duplicated or self.unexpected or self.unidentified)

    def __str__(self) -> str:
        text = (
            f"{self.in_} in, {self.out} out, {self.lost} lost, {self.duplicated} duplicated, {self.rejected} rejected"
        )
        text += f", {self.wanted} outputs wanted" if self.wanted is not None else ""
        for count, name in ((self.unexpected, "unexpected"), (self.unidentified, "unidentified")):
            text += f", {count} {name}" if count else ""
        return text

    def as_dict(self) -> dict[str, object]:
        """Return the counts for JSON output."""
        kinds = ("lost", "duplicated", "unexpected")
        return {
            "in": self.in_,
            "out": self.out,
            **{kind: getattr(self, kind) for kind in kinds},
            "rejected": self.rejected,
            "unidentified": self.unidentified,
            **({"wanted": self.wanted} if self.wanted is not None else {}),
            "examples": {kind: list(getattr(self.examples, kind)) for kind in kinds},
        }


def verify(
    kafka: Kafka,
    input_topic: str,
    output_topics: str | Sequence[str],
    identity: Identity,
    *,
    each: Times = ONE,
    output_identity: Identity | None = None,
    rejected_topic: str | None = None,
    isolation: Isolation = Isolation.READ_COMMITTED,
    limit: float = LIMIT,
    memory: int = MEMORY,
) -> Comparison:
    """Read the topics from the beginning to the current end, and compare them; `each` input leads to so many outputs.

    A record of the rejected topic counts as delivered. An input record without an id (it may not even parse) is
    identified by its place, which the headers of a rejected record name.
    """
    to_output = output_identity or identity

    counted = {"in": 0, "rejected": 0}

    def counting(side: str, name: bytes | None, place: bytes | None, number: int | None) -> Iterator[bytes | None]:
        counted[side] += 1
        if number is None:  # it does not say, as if it cannot be parsed
            name, number = place, 1
        yield from itertools.repeat(place if name is None else name, number)

    def went_in() -> Iterator[bytes | None]:
        for message in read(kafka, input_topic, isolation=isolation, limit=limit):
            place = None if rejected_topic is None else _place(message)
            yield from counting("in", _id(identity, message), place, each.of(message))

    def was_rejected(topic: str) -> Iterator[bytes | None]:
        for message in read(kafka, topic, isolation=isolation, limit=limit):
            source = message.header(HEADER_TOPIC)
            if source is None or source == input_topic.encode():
                is_output = message.header(HEADER_STAGE) in _OUTPUTS
                found = (_id(one, message) for one in ((to_output, identity) if is_output else (identity, to_output)))
                name = next((one for one in found if one is not None), None)
                number = 1 if is_output else each.of(message)
                yield from counting("rejected", name, _source_place(message), number)

    topics = [output_topics] if isinstance(output_topics, str) else output_topics
    came_out = (
        _id(to_output, message) for topic in topics for message in read(kafka, topic, isolation=isolation, limit=limit)
    )
    found = compare(went_in(), came_out, was_rejected(rejected_topic) if rejected_topic else (), memory=memory)
    if each == ONE:
        return found
    return replace(found, in_=counted["in"], rejected=counted["rejected"], wanted=found.in_)


def _id(identity: Identity, message: Message) -> bytes | None:
    try:
        return identity.of(message)
    except RecursionError:  # JSON that is nested too deep to parse has no id
        return None


def _place(message: Message) -> bytes:
    return f"{message.topic}-{message.partition}@{message.offset}".encode()


def _source_place(message: Message) -> bytes | None:
    topic, partition, offset = (message.header(name) for name in (HEADER_TOPIC, HEADER_PARTITION, HEADER_OFFSET))
    return None if topic is None or partition is None or offset is None else topic + b"-" + partition + b"@" + offset


def compare(
    inputs: Iterable[bytes | None],
    outputs: Iterable[bytes | None],
    rejected: Iterable[bytes | None] = (),
    *,
    memory: int = MEMORY,
) -> Comparison:
    """Compare the ids of two sides of any length; None is a record without an id."""
    with tempfile.TemporaryDirectory(prefix="tailrace-verify-") as folder:
        ins, outs = _Spill(Path(folder, "in"), memory // 4), _Spill(Path(folder, "out"), memory // 4)
        in_ = ins.fill(inputs)
        out, refused = outs.fill(outputs), outs.fill(rejected)
        totals: Counter[str] = Counter()
        examples: dict[str, list[str]] = {"lost": [], "duplicated": [], "unexpected": []}
        for difference in _differences(ins.folder, outs.folder, 0, max(2, memory // 2 // _COST)):
            totals.update(difference.counts)
            for kind, texts in difference.examples.items():
                examples[kind] = (examples[kind] + texts)[:EXAMPLES]
        return Comparison(
            in_=in_,
            out=out,
            rejected=refused,
            lost=totals["lost"],
            duplicated=totals["duplicated"],
            unexpected=totals["unexpected"],
            unidentified=ins.unidentified + outs.unidentified,
            examples=Examples(**{kind: tuple(texts) for kind, texts in examples.items()}),
        )


class _Spill:
    """One side's digests in a folder, spread over files by one byte of the digest."""

    def __init__(self, folder: Path, room: int, byte: int = 0) -> None:
        folder.mkdir()
        self.folder = folder
        self.unidentified = 0
        self._room = max(room, 4096)
        self._byte = byte
        self._held: dict[int, bytearray] = {}
        self._size = 0

    def fill(self, ids: Iterable[bytes | None]) -> int:
        """Add the ids, and return the number of records."""
        count = 0
        for found in ids:
            count += 1
            if found is None:
                self.unidentified += 1
            else:
                self.add(hashlib.blake2b(found, digest_size=_DIGEST).digest(), found[:_TEXT])
        self.flush()
        return count

    def add(self, digest: bytes, text: bytes) -> None:
        self._held.setdefault(digest[self._byte], bytearray()).extend(b"%b%c%b" % (digest, len(text), text))
        self._size += _DIGEST + 1 + len(text)
        if self._size >= self._room:
            self.flush()

    def flush(self) -> None:
        for bucket, held in self._held.items():
            with (self.folder / f"{bucket:02x}").open("ab") as file:
                file.write(held)
        self._held.clear()
        self._size = 0


def _records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    if path.exists():
        with path.open("rb") as file:
            while head := file.read(_DIGEST + 1):
                yield head[:_DIGEST], file.read(head[_DIGEST])


@dataclass(frozen=True)
class _Difference:
    counts: Mapping[str, int]
    examples: Mapping[str, list[str]]


def _differences(ins: Path, outs: Path, byte: int, most: int) -> Iterator[_Difference]:
    """Yield each bucket's differences; split a bucket with too many distinct ids by the digest's next byte."""
    for name in sorted({path.name for folder in (ins, outs) for path in folder.glob("??")}):
        sides = ins / name, outs / name
        counted = _count(sides, most)
        if counted is not None:
            yield _difference(sides, *counted)
            continue
        for path in sides:
            spill = _Spill(path.with_suffix(".split"), most * _COST // 2, byte + 1)
            for digest, text in _records(path):
                spill.add(digest, text)
            spill.flush()
        yield from _differences(sides[0].with_suffix(".split"), sides[1].with_suffix(".split"), byte + 1, most)


def _count(sides: tuple[Path, Path], most: int) -> tuple[Counter[bytes], Counter[bytes]] | None:
    went_in: Counter[bytes] = Counter()
    came_out: Counter[bytes] = Counter()
    for path, counter in zip(sides, (went_in, came_out), strict=True):
        for digest, _ in _records(path):
            counter[digest] += 1
            if len(went_in) + len(came_out) > most:
                return None
    return went_in, came_out


def _difference(sides: tuple[Path, Path], went_in: Counter[bytes], came_out: Counter[bytes]) -> _Difference:
    """Compare one bucket; look the ids' texts up again, so that the counters need not hold them."""
    counts: Counter[str] = Counter()
    wanted: dict[bytes, str] = {}
    shown: Counter[str] = Counter()
    for digest in went_in.keys() | came_out.keys():
        before, after = went_in[digest], came_out[digest]
        if before == after:
            continue
        kind = "lost" if after < before else "duplicated" if before else "unexpected"
        counts[kind] += abs(after - before)
        if shown[kind] < EXAMPLES:
            shown[kind] += 1
            wanted[digest] = kind
    examples: dict[str, list[str]] = {}
    for path in sides if wanted else ():
        for digest, text in _records(path):
            if (kind_ := wanted.pop(digest, None)) is not None:
                examples.setdefault(kind_, []).append(text.decode("utf-8", "backslashreplace"))
    return _Difference(counts, examples)
