"""The Arrow schemas of the gateway: the rows that it writes (`rows.ROW` for Spark), and the records that it reads."""

from __future__ import annotations

import pyarrow as pa

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

ROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.int64()),
        ("reason", pa.string()),
    ]
)

# The columns of Spark's Kafka source with includeHeaders; headers are null when a record has none.
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)


def as_rows(rows: pa.StructArray) -> pa.RecordBatch:
    """Convert a gate's rejected rows to the row layout that the gateway takes."""
    count = len(rows)
    fields = {field.name: column for field, column in zip(rows.type, rows.flatten(), strict=True)}
    columns = [
        fields[name].cast(kind) if name in fields else pa.nulls(count, kind)
        for name, kind in zip(ROW_SCHEMA.names, ROW_SCHEMA.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the columns that were not sent because all their values are null."""
    if len(batch.schema) == len(ROW_SCHEMA):
        return batch
    count = batch.num_rows
    present = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns = [present[each.name] if each.name in present else pa.nulls(count, each.type) for each in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
