"""The rows that the writer takes, as Arrow has them; what `rows.ROW` is for Spark."""

from __future__ import annotations

import pyarrow as pa

SHAPE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.int64()),
        ("reason", pa.string()),
    ]
)
