"""The records of a part without the faulty ones, which become rows for the rejected topic."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from tailrace.progress.plan import Place
from tailrace.stages.arrow_rows import origin, rejected
from tailrace.stages.process import NAME

RAISED = "function raised"
T = TypeVar("T")


def without(
    records: Generator[Any, None, T],
    faults: Mapping[Place, Mapping[int, str]],
    columns: tuple[str, ...],
    take: Callable[[pa.RecordBatch], object],
) -> Generator[Any, None, T]:
    """Yield these columns of all records but the faulty ones; those are taken aside as rows to write.

    They are taken before anything after them is asked for: once the records are read, an attempt may commit.
    """
    while True:
        try:
            batch = next(records)
        except StopIteration as end:
            found: T = end.value
            return found
        marked = list(_marked(batch, faults))
        if marked:
            where = [number for number, _ in marked]
            take(
                rejected(
                    batch, origin(batch), where, [RAISED] * len(where), [why for _, why in marked], [NAME] * len(where)
                )
            )
            taken = set(where)
            batch = batch.filter(pa.array([number not in taken for number in range(batch.num_rows)]))
        yield batch.select(columns)


def _marked(batch: pa.RecordBatch, faults: Mapping[Place, Mapping[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the number and the error of each faulty record."""
    places = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    for number, (topic, partition, offset) in enumerate(zip(*places, strict=True)):
        why = faults.get((topic, partition), {}).get(offset)
        if why is not None:
            yield number, why
