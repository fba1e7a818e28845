"""The doctor's checks of Avro schemas against the registry: what a record would run into is found before a start.

The schema of the source must read each version of its topics' subjects. The registry decides about the sink's; the
reasons are found here. Nothing is registered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Format, Pipeline
from tailrace.config import Registry as Settings
from tailrace.errors import TailraceError
from tailrace.stages.formats.known import sink_format, source_format

_SOURCE, _SINK = "source subject", "sink subject"


def schemas(pipeline: Pipeline, folder: Path, existing: Iterable[str]) -> Iterator[Check]:
    """Compare the schemas of a pipeline with a registry; `existing` topics are matched with `source.pattern`."""
    source, sink = pipeline.source, pipeline.sink
    topics: Iterable[str] = source.topics
    if source.pattern is not None:
        topics = [topic for topic in sorted(existing) if re.fullmatch(source.pattern, topic)]
    if source.registry is not None and source.schema_ is not None and source.format == Format.AVRO:
        for topic in topics:
            try:
                source_format(source, folder, jvm=False)
                yield _source(source.registry, source.schema_, folder, f"{topic}-value")
            except TailraceError as error:
                yield fail(_SOURCE, error.what, error.then)
    if sink.registry is not None and sink.schema_ is not None and sink.topic and sink.format == Format.AVRO:
        try:
            sink_format(sink, folder)
            yield _sink(sink.registry, sink.schema_, folder, f"{sink.topic}-value")
        except TailraceError as error:
            yield fail(_SINK, error.what, error.then)


def _source(settings: Settings, file: str, folder: Path, subject: str) -> Check:
    """Check whether the schema reads what each version of the subject wrote: the latest must, older ones should."""
    from tailrace.stages.formats.avro_resolution import Effect, Schema, differences
    from tailrace.stages.formats.avro_schema import read_avro
    from tailrace.stages.formats.registry import SchemaUnknown, registry

    reader, client = Schema.of(read_avro(file, folder).text), registry(settings)
    numbers = client.versions(subject)
    if not numbers:
        return ok(_SOURCE, f"the registry has no {subject}: nothing to compare")
    lines, refused = [], False
    for number in reversed(numbers):
        try:
            found = differences(client.version(subject, number), reader)
        except SchemaUnknown as error:
            lines.append(str(error))
            continue
        breaking = [each for each in found if each.effect > Effect.NONE]
        refused = refused or (number == numbers[-1] and any(each.effect is Effect.ALL for each in breaking))
        lines += [each.text(f"version {number}", file) for each in breaking]
    if not lines:
        return ok(_SOURCE, f"{file} reads {_counted(len(numbers))} of {subject}")
    words = f"{subject}: {'; '.join(lines)}"
    if refused:
        return fail(_SOURCE, words, f"change {file} so that it reads version {numbers[-1]}: its records are rejected")
    return warn(_SOURCE, words, f"change {file}, or expect records with such values among the rejected ones")


def _sink(settings: Settings, file: str, folder: Path, subject: str) -> Check:
    """Check whether the registry takes the schema; if not, say why."""
    from tailrace.stages.formats.avro_schema import read_avro
    from tailrace.stages.formats.registry import registry

    text, client = read_avro(file, folder).text, registry(settings)
    if client.accepts(subject, text):
        return ok(_SINK, f"the registry takes {file} for {subject}")
    level = client.level(subject)
    reasons = "; ".join(_reasons(settings, text, file, subject, level)) or "it gives no reason that can be named"
    return fail(
        _SINK,
        f"the registry refuses {file} for {subject}, at level {level}: {reasons}",
        f"change {file}, or write to a new topic",
    )


def _reasons(settings: Settings, text: str, file: str, subject: str, level: str) -> Iterator[str]:
    """Yield why a schema breaks a compatibility level, version by version."""
    from tailrace.stages.formats.avro_resolution import Effect, Schema, differences
    from tailrace.stages.formats.registry import SchemaUnknown, registry

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


def _counted(versions: int) -> str:
    return "the one version" if versions == 1 else f"all {versions} versions"
