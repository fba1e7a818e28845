"""The pipeline's function, on Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa

COLUMNS = pa.schema([("key", pa.binary()), ("id", pa.int64()), ("cents", pa.int64())])


def totals(batches: Iterator[pa.RecordBatch], discount: float) -> Iterator[pa.RecordBatch]:
    """One total for each order, under the order's own key."""
    for orders in batches:
        yield pa.RecordBatch.from_pylist([total(each, discount) for each in orders.to_pylist()], COLUMNS)


def total(order: dict, discount: float) -> dict:
    """An order's total in cents."""
    cents = 100 * order["count"] * order["price"] * (1 - discount)
    return {"key": order["kafka"]["key"], "id": order["id"], "cents": round(cents)}
