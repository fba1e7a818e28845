"""Lines of JSON as Avro values: for a person who writes records by hand to a topic that has Avro.

The schema is the registry's newest of the topic's subject, or that of a file. A line is read by the same rules as a
pipeline's JSON, and written by the code that writes a sink's Avro.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tailrace.config import Registry
from tailrace.errors import ConfigInvalid, SchemaInvalid
from tailrace.stages.formats import avro, json_records
from tailrace.stages.formats.arrow import Misfit
from tailrace.stages.formats.avro_schema import AvroSchema, optional, read_avro, spark_schema
from tailrace.stages.formats.registry import registry

_KEPT = "nothing was written"
Encode = Callable[[bytes], bytes]


def encoder(file: Path | None, settings: Registry | None, topic: str, usual: tuple[str, Path] | None = None) -> Encode:
    """Return what turns a line into Avro; it raises ConfigInvalid for one that does not fit.

    `file` is a schema that was asked for; `usual` is the pipeline's, for a subject that the registry does not have yet.
    """
    subject = f"{topic}-value"
    if file is None and settings is not None:
        newest = _newest(settings, subject)
        if newest is not None:
            return _lines(*newest)
    if file is not None:
        schema = read_avro(str(file), Path())
    elif usual is not None:
        schema = read_avro(*usual)
    else:
        raise SchemaInvalid(
            f"there is no schema for {topic}", kept=_KEPT, then="name a file with it: --value-schema FILE"
        )
    number = registry(settings).identify(subject, schema.text) if settings is not None else None
    return _lines(schema, number)


def _lines(schema: AvroSchema, number: int | None) -> Encode:
    fields = spark_schema(schema.expanded)
    filled = {
        each["name"]
        for each in schema.expanded["fields"]
        if "default" in each and not (isinstance(each["type"], list) and optional(each["type"]) is not None)
    }
    for field in fields.fields:
        field.nullable = field.nullable or field.name in filled
    read, write = json_records.decoder(fields), avro.encoder(schema, number)

    def encode(line: bytes) -> bytes:
        try:
            row = read(line)
            # Without its name, fastavro writes the field's default.
            return write({name: value for name, value in row.items() if value is not None or name not in filled})
        except Misfit as error:
            raise ConfigInvalid(
                f"it does not fit the schema: {error.reason}: {error.detail}",
                kept=_KEPT,
                then="write it as JSON with the schema's fields",
            ) from None

    return encode


def _newest(settings: Registry, subject: str) -> tuple[AvroSchema, int] | None:
    """Return the newest schema of a subject and its id; None if the registry does not know the subject."""
    found = registry(settings).newest(subject)
    if found is None:
        return None
    text, number = found
    try:
        return AvroSchema.of(text), number
    except Exception as error:  # fastavro also lets KeyError and TypeError through
        raise SchemaInvalid(
            f"the schema of {subject} cannot be used here: {error}",
            kept=_KEPT,
            then="name a file with the schema: --value-schema FILE",
        ) from None
