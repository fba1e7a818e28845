"""A pipeline's Avro schemas beside those that a registry has: what has changed, in words, before a record runs into it.

The schema of the source should read each version of its topics' subjects. The registry decides about the sink's; the
reasons are found here. Nothing is registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.config import Format, Registry, Sink, Source
from tailrace.stages.formats.avro_resolution import Effect, Schema, differences
from tailrace.stages.formats.avro_schema import read_avro
from tailrace.stages.formats.registry import SchemaUnknown, registry


@dataclass(frozen=True)
class Reading:
    """How a schema reads the versions of a subject."""

    subject: str
    file: str
    versions: tuple[int, ...]
    differences: tuple[str, ...]  # those that keep a value from being read as it was meant, newest version first
    newest_unread: bool  # whether no record of the newest version can be read

    @property
    def words(self) -> str:
        """What differs."""
        return f"{self.subject}: {'; '.join(self.differences)}"


@dataclass(frozen=True)
class Writing:
    """What a registry says of a schema for a subject."""

    subject: str
    file: str
    refusal: str  # empty if it takes the schema, or has it

    @property
    def then(self) -> str:
        """What to do about a refusal."""
        return f"change {self.file} (a default for a new field), or write to a new topic: tailrace offsets accept FILE"


def readings(source: Source, folder: Path, topics: Iterable[str]) -> Iterator[Reading]:
    """Compare the source's schema with the subjects of these topics, if it has a registry."""
    if source.registry is None or source.schema_ is None or source.format != Format.AVRO:
        return
    for topic in topics:
        yield _reading(source.registry, source.schema_, folder, f"{topic}-value")


def writing(sink: Sink, folder: Path) -> Writing | None:
    """Ask whether the registry takes the sink's schema; None if nothing is to be asked."""
    if sink.registry is None or sink.schema_ is None or sink.topic is None or sink.format != Format.AVRO:
        return None
    return _writing(sink.registry, sink.schema_, folder, f"{sink.topic}-value")


def _reading(settings: Registry, file: str, folder: Path, subject: str) -> Reading:
    reader, client = Schema.of(read_avro(file, folder).text), registry(settings)
    numbers = client.versions(subject)
    lines, unread = list[str](), False
    for number in reversed(numbers):
        try:
            found = differences(client.version(subject, number), reader)
        except SchemaUnknown as error:
            lines.append(str(error))
            continue
        breaking = [each for each in found if each.effect > Effect.NONE]
        unread = unread or (number == numbers[-1] and any(each.effect is Effect.ALL for each in breaking))
        lines += [each.text(f"version {number}", file) for each in breaking]
    return Reading(subject, file, tuple(numbers), tuple(lines), unread)


def _writing(settings: Registry, file: str, folder: Path, subject: str) -> Writing:
    text, client = read_avro(file, folder).text, registry(settings)
    if client.number(subject, text) is not None or client.accepts(subject, text):
        return Writing(subject, file, "")
    level = client.level(subject)
    reasons = "; ".join(_reasons(settings, text, file, subject, level)) or "it gives no reason that can be named"
    return Writing(subject, file, f"the registry refuses {file} for {subject}, at level {level}: {reasons}")


def _reasons(settings: Registry, text: str, file: str, subject: str, level: str) -> Iterator[str]:
    """Yield why a schema breaks a compatibility level, version by version."""
    own, client = Schema.of(text), registry(settings)
    numbers = client.versions(subject)
    for number in reversed(numbers if level.endswith("_TRANSITIVE") else numbers[-1:]):
        name = f"version {number}"
        try:
            other = client.version(subject, number)
        except SchemaUnknown as error:
            yield str(error)
            continue
        if level.startswith(("BACKWARD", "FULL")):
            yield from (each.text(name, file) for each in differences(other, own) if each.effect >= Effect.SOME)
        if level.startswith(("FORWARD", "FULL")):
            yield from (each.text(file, name) for each in differences(own, other) if each.effect >= Effect.SOME)
