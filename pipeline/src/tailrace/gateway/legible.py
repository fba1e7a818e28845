"""Rows whose text is not UTF-8, as Spark makes it by a cast of bytes, turned into rows that can be judged.

Arrow carries such text, and Python cannot hold it: the task would end, and so would each later try of it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tailrace.gateway.schemas import HEADERS
from tailrace.kafka.rejected_headers import NOT_UTF8_IN_HEADER

_BYTES = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


def legible(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows (ROW_SCHEMA), with bytes that are no text escaped; such a header key is a reason.

    No topic's name has the escapes, so a row with such a topic is rejected where topics are judged.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    broken = [name for name in ("topic", "headers") if not _is_text(columns[name])]
    if not broken:
        return batch
    if "topic" in broken:
        topics = columns["topic"].cast(pa.binary()).to_pylist()
        columns["topic"] = pa.array([None if each is None else _escaped(each) for each in topics], pa.string())
    if "headers" in broken:
        rows = columns["headers"].cast(_BYTES).to_pylist()
        columns["headers"] = pa.array([None if row is None else [*map(_header, row)] for row in rows], HEADERS)
        odd = [any(each["key"] is not None and not _fits(each["key"]) for each in row or ()) for row in rows]
        pairs = zip(columns["reason"].to_pylist(), odd, strict=True)
        reasons = [NOT_UTF8_IN_HEADER if why is None and bad else why for why, bad in pairs]
        columns["reason"] = pa.array(reasons, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _is_text(column: pa.Array) -> bool:
    if column.null_count == len(column):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _header(pair: dict[str, Any]) -> dict[str, Any]:
    return {"key": None if pair["key"] is None else _escaped(pair["key"]), "value": pair["value"]}


def _fits(text: bytes) -> bool:
    return _escaped(text).encode() == text


def _escaped(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")
