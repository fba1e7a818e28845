"""The input: millions of records, each of which carries its source partition and its position there.

A value begins with HEAD: whether the record is to be rejected, its source partition, and its number there. In a topic
with no other producer, the number is also the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from tailrace.gateway.schemas import ROW_SCHEMA

HEAD = np.dtype([("bad", "u1"), ("partition", ">u2"), ("number", ">u8")])
SIZE = 100
BAD_EVERY = 997  # one record in this many is to be rejected
KEYS = 64
# The condition of `process.validate` that a good record meets.
GOOD = "substring(value, 1, 1) = X'00'"


@dataclass(frozen=True)
class Fed:
    """The content of the input: the number of records in each source partition, numbered from 0."""

    counts: Mapping[int, int]
    bad_every: int = BAD_EVERY
    topic: str = ""

    @property
    def total(self) -> int:
        """The number of all records."""
        return sum(self.counts.values())

    def more(self, other: Fed) -> Fed:
        """Add records that follow these in the same partitions."""
        numbers = sorted({*self.counts, *other.counts})
        return Fed(
            {each: self.counts.get(each, 0) + other.counts.get(each, 0) for each in numbers}, self.bad_every, self.topic
        )


def is_bad(numbers: Any, every: int) -> Any:
    """Tell which of these numbers belong to records that are to be rejected."""
    return numbers % every == every - 1 if every else np.zeros(len(numbers), dtype=bool)


def values(partition: int, start: int, end: int, size: int = SIZE, bad_every: int = BAD_EVERY) -> np.ndarray[Any, Any]:
    """Make the values of a span of records, one row of bytes for each."""
    numbers = np.arange(start, end)
    made = np.zeros((end - start, size), dtype=np.uint8)
    heads = np.zeros(end - start, dtype=HEAD)
    heads["bad"], heads["partition"], heads["number"] = is_bad(numbers, bad_every), partition, numbers
    made[:, : HEAD.itemsize] = heads.view(np.uint8).reshape(-1, HEAD.itemsize)
    made[:, HEAD.itemsize :] = (numbers % 251)[:, None]  # something that compresses, as real records do
    return made


def key(number: int) -> bytes:
    """Return a record's key: its number modulo KEYS, so that keys spread over the output."""
    return b"%02d" % (number % KEYS)


def arrow(partition: int, start: int, end: int, size: int = SIZE, bad_every: int = BAD_EVERY) -> Any:
    """Make the same records as rows of the sink; those that are to be rejected have a reason."""
    count = end - start
    numbers = np.arange(start, end)
    keys = np.array([key(each) for each in range(KEYS)])
    columns = {
        "key": _binary(keys[numbers % KEYS].tobytes(), count, 2),
        "value": _binary(values(partition, start, end, size, bad_every).tobytes(), count, size),
        "reason": pc.if_else(pa.array(is_bad(numbers, bad_every)), "bad", pa.scalar(None, pa.string())),
    }
    return pa.RecordBatch.from_arrays(
        [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in ROW_SCHEMA],
        schema=ROW_SCHEMA,
    )


def _binary(data: bytes, count: int, size: int) -> Any:
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])


def feed(
    bootstrap: str,
    topic: str,
    per_partition: int,
    partitions: int,
    start: int = 0,
    size: int = SIZE,
    bad_every: int = BAD_EVERY,
    first: int = 0,
) -> Fed:
    """Write `per_partition` records to each partition from `first` on; all are acknowledged when this returns."""
    failed: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failed.append(str(error)),
        }
    )
    for partition in range(first, first + partitions):
        for begin in range(start, start + per_partition, 50_000):
            end = min(begin + 50_000, start + per_partition)
            data = values(partition, begin, end, size, bad_every).tobytes()
            for number in range(begin, end):
                at = (number - begin) * size
                _produce(producer.produce, producer, topic, data[at : at + size], key(number), partition)
            producer.poll(0)
    left = producer.flush(120)
    if failed or left:
        raise RuntimeError(f"{len(failed)} records for {topic} were refused, {left} not acknowledged: {failed[:1]}")
    return Fed(dict.fromkeys(range(first, first + partitions), per_partition), bad_every, topic)


def _produce(
    produce: Callable[..., None], producer: Producer, topic: str, value: bytes, name: bytes, place: int
) -> None:
    while True:
        try:
            produce(topic, value, name, place)
            return
        except BufferError:
            producer.poll(0.1)
