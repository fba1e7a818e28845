"""The formats that come with Tailrace, each with its class; and how the class of a format is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from pyspark.sql.types import StructType

from tailrace.config import Format, Sink, Source
from tailrace.config.reference import load
from tailrace.errors import ExtraMissing, SchemaInvalid
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.base import SinkFormat, SourceFormat
from tailrace.stages.formats.json_format import JsonSink, JsonSource
from tailrace.stages.formats.raw_format import RawSink, RawSource
from tailrace.stages.rows import HIDDEN, KAFKA


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
    made = source_kind(source).of(source, folder, jvm=jvm)
    if made.fields is not None:
        _check_names(made.fields)
    return made


def sink_format(sink: Sink, folder: Path) -> SinkFormat:
    """Return what writes the sink's values; relative paths start from `folder`."""
    known = SINKS.get(sink.format)
    own: type[SinkFormat] = known() if known else load("sink.format", sink.format, SinkFormat)
    return own.of(sink, folder)


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
