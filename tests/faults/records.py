"""What goes in: records that know their source partition and their place in it, made by the million.

A value begins with HEAD: whether the record is to be rejected, its source partition, its number there. In a topic that
nobody else writes to the number is also the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from tailrace.gateway.schemas import SHAPE

HEAD = np.dtype([("bad", "u1"), ("partition", ">u2"), ("number", ">u8")])
SIZE = 100
BAD_EVERY = 997  # one of so many is to be rejected
KEYS = 64
# The condition of `process.validate` that a good record meets.
GOOD = "substring(value, 1, 1) = X'00'"


@dataclass(frozen=True)
class Fed:
    """What is in the input: so many records in each source partition, numbered from 0."""

    counts: Mapping[int, int]
    bad_every: int = BAD_EVERY
    topic: str = ""

    @property
    def total(self) -> int:
        """All records."""
        return sum(self.counts.values())

    def more(self, other: Fed) -> Fed:
        """This and what follows it in the same partitions."""
        numbers = sorted({*self.counts, *other.counts})
        return Fed(
            {each: self.counts.get(each, 0) + other.counts.get(each, 0) for each in numbers}, self.bad_every, self.topic
        )


def is_bad(numbers: Any, every: int) -> Any:
    """Which of these numbers belong to records that are to be rejected."""
    return numbers % every == every - 1 if every else np.zeros(len(numbers), dtype=bool)


def values(partition: int, start: int, end: int, size: int = SIZE, bad_every: int = BAD_EVERY) -> np.ndarray[Any, Any]:
    """The values of a span of records, one row of bytes for each."""
    numbers = np.arange(start, end)
    made = np.zeros((end - start, size), dtype=np.uint8)
    heads = np.zeros(end - start, dtype=HEAD)
    heads["bad"], heads["partition"], heads["number"] = is_bad(numbers, bad_every), partition, numbers
    made[:, : HEAD.itemsize] = heads.view(np.uint8).reshape(-1, HEAD.itemsize)
    made[:, HEAD.itemsize :] = (numbers % 251)[:, None]  # something that compresses, as real records do
    return made


def key(number: int) -> bytes:
    """A record's key: its number's place in a small circle, so that keys spread over the output."""
    return b"%02d" % (number % KEYS)


def arrow(partition: int, start: int, end: int, size: int = SIZE, bad_every: int = BAD_EVERY) -> Any:
    """The same as rows of the sink; those that are to be rejected have a reason."""
    count = end - start
    numbers = np.arange(start, end)
    circle = np.array([key(each) for each in range(KEYS)])
    columns = {
        "key": _binary(circle[numbers % KEYS].tobytes(), count, 2),
        "value": _binary(values(partition, start, end, size, bad_every).tobytes(), count, size),
        "reason": pc.if_else(pa.array(is_bad(numbers, bad_every)), "bad", pa.scalar(None, pa.string())),
    }
    return pa.RecordBatch.from_arrays(
        [columns[each.name] if each.name in columns else pa.nulls(count, each.type) for each in SHAPE],
        schema=SHAPE,
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
    """Write so many records into each of the partitions from `first` on; they are acknowledged when this returns."""
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
