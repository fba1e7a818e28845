"""The result of a preview: each source record with the records that would be written or rejected because of it.

Everything here is plain data. `tailrace.previews.evaluation` makes it, the command line and notebooks show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tailrace.config import Pipeline
from tailrace.gateway.send import refusal
from tailrace.kafka.clients import sendable
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import (
    HEADER_DETAIL,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_REASON,
    HEADER_SINK_TOPIC,
    HEADER_STAGE,
    HEADER_TOPIC,
    PREFIX,
)
from tailrace.stages.rules import RuleCount

if TYPE_CHECKING:
    import pandas as pd

Headers = tuple[tuple[str, bytes | None], ...]
Place = tuple[str, int, int]  # topic, partition, offset


@dataclass(frozen=True)
class Row:
    """A row as the stages hand it to the gateway."""

    topic: str | None
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    reason: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Row:
        """Build it from a row of the gateway's schema."""
        headers = tuple((each["key"], _bytes(each["value"])) for each in row["headers"] or ())
        key, value = _bytes(row["key"]), _bytes(row["value"])
        return cls(row["topic"], row["partition"], key, value, headers, row["timestamp"], row["reason"])


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return bytes(value) if isinstance(value, bytearray) else value


@dataclass(frozen=True)
class Written:
    """A record that would be written; without a partition, Kafka chooses one by the key."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None  # milliseconds; None: the time of writing


@dataclass(frozen=True)
class Rejected:
    """A record that would go to the rejected topic, and why."""

    stage: str
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: Headers  # its own
    source: Place | None  # None if the function did not pass on where the row came from
    sink_topic: str | None


@dataclass(frozen=True)
class Outcome:
    """A source record, and everything that becomes of it."""

    source: Message
    written: tuple[Written, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    raised: str | None = None  # what the function raised, if that would stop the pipeline
    broken: tuple[str, ...] = ()  # the rules that the record breaks; those after one that rejects it are not asked

    @property
    def place(self) -> Place:
        """Where the record is."""
        return self.source.topic, self.source.partition, self.source.offset


@dataclass(frozen=True, repr=False)
class Preview:
    """What a pipeline would make of some records. Nothing was written."""

    pipeline: str
    origin: str  # where the records are from
    outcomes: tuple[Outcome, ...]
    unmatched: str = ""  # why outputs are not matched with their sources; empty if they are
    others: tuple[Written | Rejected, ...] = ()  # outputs that are not matched with a source
    notes: tuple[str, ...] = ()
    rules: tuple[RuleCount, ...] = ()

    @property
    def all_written(self) -> tuple[tuple[Place | None, Written], ...]:
        """Every record that would be written, with its source if known."""
        matched = [(each.place, written) for each in self.outcomes for written in each.written]
        return (*matched, *((None, each) for each in self.others if isinstance(each, Written)))

    @property
    def all_rejected(self) -> tuple[tuple[Place | None, Rejected], ...]:
        """Every record that would be rejected, with its source if known."""
        matched = [(each.place, rejected) for each in self.outcomes for rejected in each.rejected]
        return (*matched, *((None, each) for each in self.others if isinstance(each, Rejected)))

    @property
    def raised(self) -> tuple[Outcome, ...]:
        """The records at which the function raises, if that would stop the pipeline."""
        return tuple(each for each in self.outcomes if each.raised is not None)

    @property
    def good(self) -> bool:
        """Whether no record is rejected and none stops the pipeline."""
        return not self.all_rejected and not self.raised

    @property
    def summary(self) -> str:
        """The counts in one line."""
        counts = [f"{len(self.all_written)} would be written", f"{len(self.all_rejected)} rejected"]
        if not self.unmatched:
            dropped = sum(not (each.written or each.rejected or each.raised) for each in self.outcomes)
            counts += [f"{dropped} dropped by the function"] * bool(dropped)
        counts += [f"{len(self.raised)} would stop the pipeline"] * bool(self.raised)
        records = "1 record" if len(self.outcomes) == 1 else f"{len(self.outcomes)} records"
        return f"{self.pipeline}: {records} of {self.origin}: {', '.join(counts)}"

    @property
    def written(self) -> pd.DataFrame:
        """The records that would be written, as a pandas DataFrame."""
        from tailrace.previews.frames import written

        return written(self)

    @property
    def rejected(self) -> pd.DataFrame:
        """The records that would be rejected, and those that would stop the pipeline, as a pandas DataFrame."""
        from tailrace.previews.frames import rejected

        return rejected(self)

    def __repr__(self) -> str:
        return f"<preview of {self.summary}>"

    def _repr_html_(self) -> str:
        from tailrace.previews.frames import html

        return html(self)


def verdict(row: Row, pipeline: Pipeline) -> Written | Rejected:
    """Return what becomes of a row, as the gateway decides it."""
    topic = row.topic if row.topic is not None else pipeline.sink.topic
    if row.reason is None:
        why = refusal(topic, pipeline.sink.allowed)
        if why is None and topic is not None:
            at = None if row.timestamp is None else sendable(row.timestamp)
            return Written(topic, row.partition, row.key, row.value, row.headers, at)
        return Rejected("sink", why or "", "", row.key, row.value, row.headers, None, topic)
    ours = {name: value.decode("utf-8", "replace") for name, value in row.headers if value and name.startswith(PREFIX)}
    source = None
    if ours.keys() >= {HEADER_TOPIC, HEADER_PARTITION, HEADER_OFFSET}:
        source = ours[HEADER_TOPIC], int(ours[HEADER_PARTITION]), int(ours[HEADER_OFFSET])
    return Rejected(
        stage=ours.get(HEADER_STAGE, ""),
        reason=ours.get(HEADER_REASON, row.reason),
        detail=ours.get(HEADER_DETAIL, ""),
        key=row.key,
        value=row.value,
        headers=tuple(each for each in row.headers if not each[0].startswith(PREFIX)),
        source=source,
        sink_topic=ours.get(HEADER_SINK_TOPIC),
    )


def outcome(source: Message, rows: Iterable[Row], pipeline: Pipeline, raised: str | None = None) -> Outcome:
    """Return the outcome of a record whose rows are known."""
    found = [verdict(row, pipeline) for row in rows]
    written = tuple(each for each in found if isinstance(each, Written))
    rejected = tuple(each for each in found if isinstance(each, Rejected))
    return Outcome(source, written, rejected, raised)


def by_source(
    outcomes: Sequence[Outcome], rows: Iterable[Row], pipeline: Pipeline
) -> tuple[tuple[Outcome, ...], tuple[Written | Rejected, ...]]:
    """Give each outcome its rejected rows, which name their source; return the outcomes and all other rows."""
    found = [verdict(row, pipeline) for row in rows]
    known = {each.place for each in outcomes}
    if len(known) < len(outcomes):  # a file may give several records the same place
        return tuple(outcomes), tuple(found)
    of: dict[Place, list[Rejected]] = {}
    others: list[Written | Rejected] = []
    for each in found:
        if isinstance(each, Rejected) and each.source in known:
            of.setdefault(each.source, []).append(each)
        else:
            others.append(each)
    matched = [replace(each, rejected=(*each.rejected, *of.get(each.place, ()))) for each in outcomes]
    return tuple(matched), tuple(others)
