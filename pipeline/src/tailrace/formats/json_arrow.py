"""JSON by a Spark schema to Arrow columns, without a JVM."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import StructType

from tailrace.formats.arrow import Verdicts, decode_values
from tailrace.formats.json_records import decoder
from tailrace.formats.jsonschema import WRONG_TYPE

Read = Callable[[pa.Array], tuple[list[pa.Array], Verdicts]]


def reader(schema: StructType, wanted: pa.Schema) -> Read:
    """Return the function that decodes a column of values."""
    decode = decoder(schema)
    return lambda values: decode_values(values.to_pylist(), wanted, decode, WRONG_TYPE)
