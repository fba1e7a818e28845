"""The plan of a batch: what it reads and which sink partition reads what, stored before any of it is committed.

The driver makes it once (`driver/choose.py`). A replay delivers the same plan, so nothing about a batch is computed
twice. The digest covers everything that exactness depends on, and each marker holds it.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NewType

from tailrace.config import Delivery, Pipeline
from tailrace.errors import LedgerUnusable

BatchId = NewType("BatchId", int)
SinkPartition = NewType("SinkPartition", int)
Place = tuple[str, int]  # a source partition: topic and number
Away = Mapping[str, Mapping[Place, int]]  # positions of topics that are not seen, by the topic's id
Settings = Mapping[str, str] | None  # of a Spark session; None if nobody noted them

BEFORE_FIRST = BatchId(-1)  # the number of a plan that holds no batch, only where the first one begins

VERSION = 2
_DEFAULT = "its default"
_COMPRESSED_FROM = 16_384  # characters: larger plans would approach the broker's limit for a message
_MAGIC = b"\x02z"


def unseen(away: Away) -> dict[Place, int]:
    """Return the positions that are kept of topics that are not seen."""
    return {place: offset for places in away.values() for place, offset in places.items()}


@dataclass(frozen=True, order=True)
class Range:
    """Offsets of one topic partition: from `start`, up to but excluding `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.start}-{self.end}"

    @property
    def place(self) -> Place:
        """The topic partition."""
        return self.topic, self.partition

    @classmethod
    def parse(cls, text: str) -> Range:
        """Parse the text form that `str` gives."""
        found = re.fullmatch(r"(.+)-(\d+):(\d+)-(\d+)", text)
        if found is None:
            raise LedgerUnusable(f"{text!r} is not a range")
        return cls(found[1], int(found[2]), int(found[3]), int(found[4]))


@dataclass(frozen=True)
class Plan:
    """One batch. `parts` holds the ranges of each reading task.

    Without a shuffle a reading task is a sink partition. With one, the sink partitions are first those of the `outputs`
    and then, where records can be rejected, one for the rejected records of each reading task.
    """

    pipeline: str
    batch: BatchId
    sink: str  # the sink topic; empty where each row names its own
    topics: Mapping[str, str]  # the source topics it reads, with their topic ids
    parts: tuple[tuple[Range, ...], ...]
    outputs: int
    ends: Mapping[Place, int]  # end position of each source partition, including those that it does not read
    shuffles: bool = False
    judges: bool = (
        False  # with a shuffle: the reading tasks commit their rejected records in sink partitions of their own
    )
    cut: tuple[str, ...] = ()  # the shuffles, as Spark partitions their rows
    run: str = ""
    at: float = 0.0
    marked: float = 0.0  # when this pipeline last committed markers, as far as the driver knows; 0: never
    delivery: Delivery = Delivery.EXACTLY_ONCE
    rules: str = ""  # digest of what decides verdicts: format, schema, conditions
    code: str = ""  # digest of the function's files and arguments
    settings: Settings = None  # what the session's settings were that may decide what an expression gives
    done: bool = False  # every sink partition is written
    until: Mapping[Place, int] | None = None  # where a backfill ends, fixed before its first batch
    away: Away = field(default_factory=dict)  # kept, and not read
    inherited: str = ""  # the digest of the plan that is finished in this form, or of its rest; never stored
    delivered: frozenset[SinkPartition] = frozenset()  # whose ranges were taken out, see `rest`; never stored

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All ranges, in their order."""
        return tuple(sorted(each for part in self.parts for each in part))

    @property
    def open(self) -> tuple[int, ...]:
        """The numbers of the parts that are to be read; fewer than all only without a shuffle."""
        return tuple(number for number in range(len(self.parts)) if number not in self.delivered)

    @property
    def sinks(self) -> int:
        """The number of sink partitions."""
        return self.outputs + (len(self.parts) if self.judges else 0)

    @property
    def records(self) -> int:
        """How many offsets the batch spans."""
        return sum(each.end - each.start for part in self.parts for each in part)

    @cached_property
    def digest(self) -> str:
        """What a marker names: equal if and only if every sink partition holds the same."""
        if self.inherited:
            return self.inherited
        parts = [[str(each) for each in part] for part in self.parts]
        named = [self.pipeline, self.batch, self.sink, sorted(self.topics.items()), parts, self.outputs]
        text = json.dumps([VERSION, *named, self.shuffles, self.judges, self.cut])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_bytes(self) -> bytes:
        """Serialize the plan for the ledger: JSON, compressed if it is large."""
        more: dict[str, Any] = {} if self.until is None else {"until": _nested(self.until)}
        if self.away:
            more["away"] = {name: _nested(places) for name, places in sorted(self.away.items())}
        if self.settings is not None:
            more["settings"] = dict(self.settings)
        text = json.dumps(
            {
                "version": VERSION,
                "pipeline": self.pipeline,
                "batch": self.batch,
                "sink": self.sink,
                "topics": dict(self.topics),
                "parts": [_nested({each.place: [each.start, each.end] for each in part}) for part in self.parts],
                "outputs": self.outputs,
                "ends": _nested(self.ends),
                "shuffles": self.shuffles,
                "judges": self.judges,
                "cut": list(self.cut),
                "run": self.run,
                "at": self.at,
                "marked": self.marked,
                "delivery": self.delivery.value,
                "shape": self.rules,
                "code": self.code,
                "done": self.done,
                "digest": self.digest,
                **more,
            },
            separators=(",", ":"),
        ).encode()
        return text if len(text) < _COMPRESSED_FROM else _MAGIC + zlib.compress(text, 6)

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str) -> Plan:
        """Read the plan that the ledger holds at `where`; raise LedgerUnusable if it was changed by somebody else."""
        try:
            plan = cls(
                pipeline=data["pipeline"],
                batch=BatchId(data["batch"]),
                sink=data["sink"],
                topics=dict(data["topics"]),
                parts=tuple(_ranges(part) for part in data["parts"]),
                outputs=data["outputs"],
                ends=_flat(data["ends"]),
                shuffles=data["shuffles"],
                judges=data["judges"],
                cut=tuple(data["cut"]),
                run=data["run"],
                at=data["at"],
                marked=data["marked"],
                delivery=Delivery(data["delivery"]),
                rules=data["shape"],
                code=data["code"],
                settings=dict(data["settings"]) if "settings" in data else None,
                done=data["done"],
                until=_flat(data["until"]) if "until" in data else None,
                away={name: _flat(places) for name, places in data.get("away", {}).items()},
            )
            digest = data["digest"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise tampered(where, f"it is not a plan ({type(error).__name__}: {error})") from error
        if digest != plan.digest:
            raise tampered(where, "its digest does not fit its contents")
        return plan

    def rest(self, delivered: Collection[SinkPartition]) -> Plan:
        """Return the plan, with its digest and sink partitions, without the ranges that only these were made of.

        With a shuffle, each sink partition may need the records of every range: then nothing is taken out.
        """
        if self.shuffles or not delivered:
            return self
        parts = tuple(() if number in delivered else part for number, part in enumerate(self.parts))
        return replace(self, parts=parts, delivered=frozenset(delivered), inherited=self.digest)

    def finished(self, ends: Mapping[Place, int] | None = None, ids: Mapping[str, str] | None = None) -> Plan:
        """Return the plan noted as done; with other ends if the positions were moved after it.

        The ids are those of the topics that have come since.
        """
        if ends is None:
            return replace(self, done=True)
        return replace(self, done=True, ends=dict(ends), topics={**self.topics, **_of(ends, ids or {})})


def unlike(then: Settings, now: Settings) -> list[str]:
    """Return the settings that differ, with both values; none for a plan of an earlier version, which noted none."""
    if then is None or now is None:
        return []
    names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return [f"{each} ({then.get(each, _DEFAULT)}, now {now.get(each, _DEFAULT)})" for each in names]


def position(pipeline: Pipeline, before: BatchId, ids: Mapping[str, str], ends: Mapping[Place, int], at: float) -> Plan:
    """Return a finished plan that holds no batch, only where the next one begins, in these topics of those seen."""
    return Plan(
        pipeline=pipeline.pipeline,
        batch=before,
        sink=pipeline.sink.topic or "",
        topics=_of(ends, ids),
        parts=(),
        outputs=0,
        ends=ends,
        at=at,
        delivery=pipeline.sink.delivery,
        done=True,
    )


def unpacked(value: bytes) -> Any:
    """Read a record's JSON, compressed or not; raise ValueError if it is neither."""
    if value.startswith(_MAGIC):
        try:
            value = zlib.decompress(value[len(_MAGIC) :])
        except zlib.error as error:
            raise ValueError(str(error)) from error
    return json.loads(value)


def tampered(where: str, why: str) -> LedgerUnusable:
    """Return the error for a ledger record that was changed after Tailrace wrote it."""
    return LedgerUnusable(
        f"{where} was changed by somebody else: {why}",
        kept="nothing was written",
        then="restore the ledger, or give the pipeline a new name and set auto.offset.reset",
    )


def _of(places: Iterable[Place], ids: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the topics that these places are of."""
    return {topic: ids[topic] for topic in sorted({topic for topic, _ in places} & ids.keys())}


def _nested(places: Mapping[Place, Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (topic, number), value in sorted(places.items()):
        nested.setdefault(topic, {})[str(number)] = value
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {(topic, int(number)): end for topic, ends in nested.items() for number, end in ends.items()}


def _ranges(part: Mapping[str, Mapping[str, Any]]) -> tuple[Range, ...]:
    return tuple(
        Range(topic, int(number), int(start), int(end))
        for topic, numbers in part.items()
        for number, (start, end) in numbers.items()
    )
