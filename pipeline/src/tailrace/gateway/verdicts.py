"""The verdicts of a reading task, in a form small enough for a marker.

In a pipeline that shuffles, rejected records are committed before the accepted rows continue. A repeated read must give
the same verdicts. A marker's metadata is small (the broker's limit is 4 KiB), so the rejected offsets are stored as
they are if they fit, and otherwise as hashes of groups of offsets. Kafka may have removed a rejected record from a
compacted topic since. Only offsets that are stored as they are can be looked up there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Set
from typing import Any

from tailrace.errors import VerdictChanged
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from tailrace.progress.plan import Range

Record = tuple[str, int, int]  # topic, partition, offset

_LONGEST = 2_400  # characters of the marker's metadata
_STRETCHES = 128
_COMPACTED = "or if Kafka has removed a rejected record from a compacted topic, which so many do not show, "


class Verdicts:
    """Collects the rejected records of one reading task."""

    def __init__(self) -> None:
        self._rejected: set[Record] = set()

    def rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches, noting where each row's record came from."""
        for batch in batches:
            for headers in batch.column("headers").to_pylist():
                named = {each["key"]: each["value"] for each in headers or ()}
                place = named[HEADER_TOPIC].decode(), int(named[HEADER_PARTITION]), int(named[HEADER_OFFSET])
                self._rejected.add(place)
            yield batch

    def text(self) -> str:
        """Write the verdicts for a marker: a digest, and as much detail as fits, to locate a difference."""
        digest = hashlib.sha256(json.dumps(sorted(self._rejected)).encode()).hexdigest()[:16]
        listed = json.dumps(self._listed(), separators=(",", ":"))
        if len(listed) <= _LONGEST:
            return f"{digest}={listed}"
        return f"{digest}~{''.join(self._stretches())}"

    def _listed(self) -> dict[str, list[int]]:
        """List each source partition's offsets: the first, then the distances between them."""
        found: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        for topic, partition, offset in sorted(self._rejected):
            place = f"{topic}-{partition}"
            found.setdefault(place, []).append(offset - last.get(place, 0))
            last[place] = offset
        return found

    def _stretches(self) -> list[str]:
        buckets: list[list[Record]] = [[] for _ in range(_STRETCHES)]
        for each in sorted(self._rejected):
            buckets[each[2] % _STRETCHES].append(each)
        return [hashlib.sha256(json.dumps(each).encode()).hexdigest()[:8] for each in buckets]

    def check(
        self,
        stored: str,
        who: str,
        lost: Collection[Range] = (),
        remaining: Callable[[Set[Record]], Set[Record]] = lambda records: records,
    ) -> None:
        """Raise VerdictChanged if the marker was written with other verdicts of records that exist still.

        Of those that were read before and not now, `remaining` returns the ones that its topic has.
        """
        if stored.partition("=")[0].partition("~")[0] == self.text()[:16]:
            return
        difference = self._difference(stored, lost, remaining)
        if difference is None:
            return
        compacted = "" if "=" in stored else _COMPACTED
        raise VerdictChanged(
            f"{who}: {difference}, and was not when the batch was first read",
            kept="nothing more of the batch was delivered; what was, is not delivered again",
            then="restore the schema registry, schema and code that the batch began with, then start again; if that "
            f"cannot be, {compacted}give the batch up: `tailrace explain TR-314` says how",
        )

    def _difference(
        self, stored: str, lost: Collection[Range], remaining: Callable[[Set[Record]], Set[Record]]
    ) -> str | None:
        """Name the first record whose verdict differs; return None if those that are gone explain every difference."""
        if "=" in stored:
            before = {
                (place.rpartition("-")[0], int(place.rpartition("-")[2]), offset)
                for place, steps in json.loads(stored.partition("=")[2]).items()
                for offset in _summed(steps)
            }
            missed = {each for each in before - self._rejected if not _among(each, lost)}
            left = remaining(missed) if missed else missed
            differ = (self._rejected - before) | left
            if not differ:
                return None if lost or missed else "a record now has another verdict"
            topic, partition, offset = min(differ)
            now = "rejected" if (topic, partition, offset) in self._rejected else "accepted"
            return f"the record {topic}-{partition} offset {offset} is now {now}"
        hashes = stored.partition("~")[2]
        for number, mine in enumerate(self._stretches()):
            if hashes[number * 8 : number * 8 + 8] != mine and not _touched(number, lost):
                near = [each for each in sorted(self._rejected) if each[2] % _STRETCHES == number][:1]
                shown = "".join(f", like {topic}-{partition} offset {offset}" for topic, partition, offset in near)
                return f"a record whose offset is {number} modulo {_STRETCHES}{shown} now has another verdict"
        return None if lost else "a record now has another verdict"


def _among(record: Record, lost: Collection[Range]) -> bool:
    topic, partition, offset = record
    return any(each.place == (topic, partition) and each.start <= offset < each.end for each in lost)


def _touched(stretch: int, lost: Collection[Range]) -> bool:
    """Return whether a group of offsets has a lost one: what its hash was of is unknown then."""
    return any((stretch - each.start) % _STRETCHES < each.end - each.start for each in lost)


def _summed(steps: list[int]) -> Iterator[int]:
    total = 0
    for step in steps:
        total += step
        yield total
