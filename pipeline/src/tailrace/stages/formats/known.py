"""The formats that come with Tailrace, each with its class; and how the class of a format is found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark.sql.types import StructType

from tailrace.config import Format, Pipeline, Sink, Source
from tailrace.config.reference import load
from tailrace.errors import ConfigInvalid, ExtraMissing, SchemaInvalid
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.base import SinkFormat, SourceFormat
from tailrace.stages.formats.json_format import JsonSink, JsonSource
from tailrace.stages.formats.json_model import REFERENCE
from tailrace.stages.formats.raw_format import RawSink, RawSource
from tailrace.stages.imported_texts import AGAIN, ImportedTexts, elsewhere
from tailrace.stages.module_sources import sources
from tailrace.stages.rows import HIDDEN, KAFKA

# Workers keep what they have imported, and a model is loaded once per process.
_texts = ImportedTexts(reloads=False)
_remembered: set[str] = set()  # references


def _avro() -> ModuleType:
    """Import the format avro; raise ExtraMissing without fastavro, which is an extra."""
    try:
        from tailrace.stages.formats import avro_format
    except ImportError as error:
        raise ExtraMissing.of("avro", "the format avro", error) from error
    return avro_format


SOURCES: Final[dict[str, Callable[[], type[SourceFormat]]]] = {
    Format.RAW: lambda: RawSource,
    Format.JSON: lambda: JsonSource,
    Format.AVRO: lambda: _avro().AvroSource,
}
SINKS: Final[dict[str, Callable[[], type[SinkFormat]]]] = {
    Format.RAW: lambda: RawSink,
    Format.JSON: lambda: JsonSink,
    Format.AVRO: lambda: _avro().AvroSink,
}


def source_kind(source: Source) -> type[SourceFormat]:
    """Return the class that reads the source's values."""
    known = SOURCES.get(source.format)
    own: type[SourceFormat] = known() if known else load("source.format", source.format, SourceFormat)
    return own


def source_format(source: Source, folder: Path, *, jvm: bool) -> SourceFormat:
    """Return what reads the source's values; relative paths start from `folder`."""
    try:
        made = source_kind(source).of(source, folder, jvm=jvm)
    finally:  # a module that was imported stays so if it is refused
        _remember(source.format, folder)
        _remember(source.schema_, folder)
    if made.fields is not None:
        _check_names(made.fields)
    return made


def sink_format(sink: Sink, folder: Path) -> SinkFormat:
    """Return what writes the sink's values; relative paths start from `folder`."""
    known = SINKS.get(sink.format)
    own: type[SinkFormat] = known() if known else load("sink.format", sink.format, SinkFormat)
    _remember(sink.format, folder)
    return own.of(sink, folder)


def refuse_edited(pipeline: Pipeline, folder: Path) -> None:
    """Refuse a format or a model of a package that this process has imported from an earlier text or another folder."""
    source = pipeline.source
    settings = (("source.format", source.format), ("sink.format", pipeline.sink.format))
    for setting, reference in (*settings, ("source.schema", source.schema_)):
        found = REFERENCE.fullmatch(reference or "")
        if reference is None or found is None or found["where"].endswith(".py"):
            continue  # a file with a model is run from its text
        own = sources(reference, folder)
        stale = elsewhere(found["where"], own) or (_texts.edited(own) if reference in _remembered else "")
        if stale:
            kind = SchemaInvalid if setting == "source.schema" else ConfigInvalid
            raise kind(f"{setting} {reference!r} cannot be loaded: {stale}", kept=KEPT, then=AGAIN)


def _remember(reference: str | None, folder: Path) -> None:
    """Note the texts of a package that has been imported; a file with a model is run from its text."""
    found = REFERENCE.fullmatch(reference or "")
    if reference and found and found["where"] in sys.modules and reference not in _remembered:
        _remembered.add(reference)
        _texts.remember(sources(reference, folder))


def _check_names(schema: StructType) -> None:
    """Raise SchemaInvalid unless the names are free; some are reserved, and Spark ignores the case of names."""
    known: set[str] = set()
    for name in schema.names:
        if name.lower() == KAFKA or name.lower().startswith(HIDDEN):
            raise SchemaInvalid(
                f"the schema has a field {name!r}; `{KAFKA}` and names beginning with {', '.join(HIDDEN)} are reserved",
                kept=KEPT,
                then="give the field another name",
            )
        if name.lower() in known:
            raise SchemaInvalid(f"the schema has the field {name!r} twice, ignoring case", kept=KEPT)
        known.add(name.lower())
    if not known:
        raise SchemaInvalid("the schema has no fields", kept=KEPT, then="name at least one field")
