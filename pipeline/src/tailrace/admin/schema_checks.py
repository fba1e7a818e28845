"""The doctor's checks of Avro schemas against the registry: what a record would run into is found before a start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Format, Pipeline
from tailrace.errors import TailraceError
from tailrace.stages.formats.known import sink_format, source_format

if TYPE_CHECKING:
    from tailrace.stages.formats.evolution import Reading

_SOURCE, _SINK = "source subject", "sink subject"


def schemas(pipeline: Pipeline, folder: Path, existing: Iterable[str]) -> Iterator[Check]:
    """Compare the schemas of a pipeline with a registry; `existing` topics are matched with `source.pattern`."""
    source, sink = pipeline.source, pipeline.sink
    topics: Iterable[str] = source.topics
    if source.pattern is not None:
        topics = [topic for topic in sorted(existing) if re.fullmatch(source.pattern, topic)]
    if source.registry is not None and source.format == Format.AVRO:
        for topic in topics:
            yield from _source(pipeline, folder, topic)
    if sink.registry is not None and sink.topic and sink.format == Format.AVRO:
        yield from _sink(pipeline, folder)


def _source(pipeline: Pipeline, folder: Path, topic: str) -> Iterator[Check]:
    """Check whether the schema reads what each version of the subject wrote: the latest must, older ones should."""
    try:
        source_format(pipeline.source, folder, jvm=False)
        from tailrace.stages.formats.evolution import readings  # it needs fastavro, an extra

        for found in readings(pipeline.source, folder, [topic]):
            yield _read(found)
    except TailraceError as error:
        yield fail(_SOURCE, error.what, error.then)


def _read(found: Reading) -> Check:
    file = found.file
    if not found.versions:
        return ok(_SOURCE, f"the registry has no {found.subject}: nothing to compare")
    if not found.differences:
        return ok(_SOURCE, f"{file} reads {_counted(len(found.versions))} of {found.subject}")
    if found.newest_unread:
        newest = found.versions[-1]
        return fail(_SOURCE, found.words, f"change {file} so that it reads version {newest}: its records are rejected")
    return warn(_SOURCE, found.words, f"change {file}, or expect records with such values among the rejected ones")


def _sink(pipeline: Pipeline, folder: Path) -> Iterator[Check]:
    """Check whether the registry takes the schema; if not, say why."""
    try:
        sink_format(pipeline.sink, folder)
        from tailrace.stages.formats.evolution import writing

        found = writing(pipeline.sink, folder)
    except TailraceError as error:
        yield fail(_SINK, error.what, error.then)
        return
    if found is not None and found.refusal:
        yield fail(_SINK, found.refusal, found.then)
    elif found is not None:
        yield ok(_SINK, f"the registry takes {found.file} for {found.subject}")


def _counted(versions: int) -> str:
    return "the one version" if versions == 1 else f"all {versions} versions"
