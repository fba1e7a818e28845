"""The records of a world: what goes in, what must come out, and what the pipeline's function does.

Each input record carries its source partition and number. An output carries its partition and FACTOR times the number
of its input plus its place among the outputs of that input, so that no two outputs of a world are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from confluent_kafka import Producer

from faults.checker import Array
from faults.records import is_bad, key
from faults.worlds.encodings import broken, encoded, framed
from faults.worlds.world import Input, Work, World
from tailrace.testing import wait_until

FACTOR = 3
# Numbers of records in aborted transactions begin here: none of them may ever come out.
ABORTED = 1 << 40
# Numbers of records that the brokers may remove begin here: each may come out, once. They have a key of their own.
FILLER = 1 << 36
FILLER_KEY = b"filler"
_FILLERS = 5
_UNTIL_FILLERS = 200
# Records of a transaction in the input. A large world has larger ones: most of its time would go to its input.
_PER_TRANSACTION, _TRANSACTIONS = 500, 100
_LIMIT = 300.0  # seconds for the brokers to take the input, on a machine that does much besides
_ABORTED = 50  # records of each partition in a transaction that is aborted
PAD = "x" * 40
# The records of source partition 0 at which a function raises that does so.
RAISES = (15, 700, 701)

# One function for each kind of work, on Arrow batches and on DataFrames. Values begin with HEAD, or are JSON.
FUNCTIONS = """
import struct
from decimal import Decimal

import pyarrow as pa
from pydantic import BaseModel

HEAD = struct.Struct(">BHQ")
FACTOR = 3
LIMIT = 50
RAISES = (15, 700, 701)


class In(BaseModel):
    p: int
    n: int
    pad: str | None = None


class Wide(In):
    d: Decimal | None = None


def copies(number, work):
    if work == "explode":
        return 1 + number % FACTOR
    return int(work != "filter" or number % 5 != 0)


def outputs(value, work, raises):
    bad, partition, number = HEAD.unpack_from(value)
    if raises and partition == 0 and number in RAISES:
        raise ValueError(f"record {number} is faulty")
    for copy in range(copies(number, work)):
        yield HEAD.pack(bad, partition, number * FACTOR + copy) + value[HEAD.size :]


def arrow(batches, work, encoding, raises=False):
    left = LIMIT
    for batch in batches:
        if work == "limit":
            batch = batch.slice(0, left)
            left -= batch.num_rows
            if not batch.num_rows:
                return
        keys = batch.column("kafka").field("key").to_pylist()
        if encoding != "raw":
            if raises and any(p == 0 and n in RAISES for p, n in zip(*(batch.column(c).to_pylist() for c in "pn"))):
                raise ValueError("a record is faulty")
            rows = [
                (key, p, n * FACTOR + copy)
                for key, p, n in zip(keys, batch.column("p").to_pylist(), batch.column("n").to_pylist())
                for copy in range(copies(n, work))
            ]
            kinds = pa.binary(), pa.int64(), pa.int64()
            columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "p", "n"])
        else:
            values = batch.column("value").to_pylist()
            rows = [(key, out) for key, value in zip(keys, values) for out in outputs(value, work, raises)]
            columns = [pa.array([row[i] for row in rows], pa.binary()) for i in range(2)]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def frame(rows, work, encoding, raises=False):
    from pyspark.sql import SparkSession, functions as F  # a driver without Spark starts sooner without it
    from pyspark.sql.types import ArrayType, BinaryType

    key = F.col("kafka.key").alias("key")
    if raises and encoding != "raw":
        rows = rows.withColumn("n", F.expr(f"if(p = 0 AND n IN {RAISES}, 1 DIV 0, n)"))
    if encoding != "raw":
        made = F.when(F.lit(work == "explode"), 1 + F.col("n") % FACTOR).when(
            F.lit(work != "filter") | (F.col("n") % 5 != 0), 1
        ).otherwise(0)
        copy = F.explode(F.sequence(F.lit(0), F.lit(FACTOR - 1))).alias("copy")
        each = rows.select(key, "p", "n", copy, made.alias("made"))
        found = each.where("copy < made").select("key", "p", (F.col("n") * FACTOR + F.col("copy")).alias("n"))
    else:
        spread = F.udf(lambda value: list(outputs(bytes(value), work, raises)), ArrayType(BinaryType()))
        found = rows.select(key, F.explode(spread("value")).alias("value"))
    if work == "join":
        known = SparkSession.active().createDataFrame([(rest,) for rest in range(6)], "rest long")
        found = found.join(F.broadcast(known), F.expr(f"n DIV {FACTOR} % 7") == known.rest).drop("rest")
    if work == "lookup":  # its size becomes known when it has been read for the first time
        known = SparkSession.active().createDataFrame([(rest,) for rest in range(6)], "rest long").cache()
        found = found.join(known, F.expr(f"n DIV {FACTOR} % 7") == known.rest).drop("rest")
    if work == "distinct":
        found = found.dropDuplicates([name for name in found.columns if name != "key"])
    # Each version of this code divides the rows in another way.
    return found.repartition("key", F.lit(DEPLOYED)) if work == "shuffle" else found
"""


def numbered(world: World, start: int, end: int) -> Array:
    """Return the numbers of a span of records: consecutive, or each block twice, mostly in different batches."""
    places = np.arange(start, end)
    if world.work is not Work.DISTINCT:
        return places
    block = max(10, world.max_records // len(world.counts))
    return places - block * (places // block % 2)


def values(world: World, partition: int, start: int, end: int) -> list[bytes]:
    """Make the input values of a span of records."""
    numbers = numbered(world, start, end)
    bad = is_bad(numbers, world.bad_every)
    return [
        framed(world, broken(world, partition, number) if wrong else encoded(world, partition, number, PAD))
        for number, wrong in zip(numbers.tolist(), bad, strict=True)
    ]


def feed(world: World, bootstrap: str, topic: str, counts: Mapping[int, int], before: Mapping[int, int]) -> None:
    """Write this many records more to each partition; all are acknowledged, or aborted, when this returns."""
    transactional = world.input is not Input.PLAIN
    options: dict[str, object] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 10}
    options |= {"transactional.id": f"feed-{topic}"} if transactional else {}
    producer = Producer(options)
    failed: list[str] = []

    def write(partition: int, number: int, value: bytes) -> None:
        name = key_of(world, number)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    name,
                    partition,
                    on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)

    if transactional:
        producer.init_transactions(60)
    for index, transaction in enumerate(transactions(world, counts, before)):
        if transactional:
            producer.begin_transaction()
        if world.input is Input.ABORTED and index % 2 == 0:
            for partition, records in transaction:
                for number, _ in records[:_ABORTED]:
                    write(partition, number, aborted(world, partition, number))
            producer.flush(60)
            producer.abort_transaction(60)
            producer.begin_transaction()
        for partition, records in transaction:
            for place, (number, value) in enumerate(records):
                write(partition, number, value)
                if world.input is Input.COMPACTED and place % _UNTIL_FILLERS == 0:
                    for filler in range(FILLER + number * _FILLERS, FILLER + (number + 1) * _FILLERS):
                        write(partition, filler, framed(world, encoded(world, partition, filler, PAD)))
        if transactional:
            producer.commit_transaction(60)
    wait_until(lambda: producer.flush(1) == 0, f"the input of {topic} to be acknowledged", _LIMIT)
    failed = [each for each in failed if "purge" not in each.lower()]
    if failed:
        raise RuntimeError(f"{len(failed)} records for {topic} were refused: {failed[0]}")


Records = list[tuple[int, bytes]]  # numbers and values


def transactions(
    world: World, counts: Mapping[int, int], before: Mapping[int, int]
) -> Iterator[list[tuple[int, Records]]]:
    """Split the records of each partition into transactions; a small rest of a partition shares one with the next."""
    size = max(_PER_TRANSACTION, sum(world.counts) // _TRANSACTIONS)
    filling: list[tuple[int, Records]] = []
    for partition, count in counts.items():
        start = before.get(partition, 0)
        numbers = numbered(world, start, start + count).tolist()
        every = list(zip(numbers, values(world, partition, start, start + count), strict=True))
        for at in range(0, count, size):
            filling.append((partition, every[at : at + size]))
            if sum(len(records) for _, records in filling) >= size:
                yield filling
                filling = []
    if filling:
        yield filling


def key_of(world: World, number: int) -> bytes:
    """Return the key of an input record: one of its own if the brokers keep only the last record of each."""
    if is_filler(number):
        return FILLER_KEY
    return b"%010d" % number if world.input is Input.COMPACTED else key(number)


def is_filler(number: int) -> bool:
    """Tell whether this is the number of an input record that the brokers may remove."""
    return FILLER <= number < ABORTED


def aborted(world: World, partition: int, number: int) -> bytes:
    """Make the value of a record in an aborted transaction."""
    return framed(world, encoded(world, partition, ABORTED + number, PAD))


LEAVING_OUT = frozenset({Work.FILTER, Work.JOIN, Work.LOOKUP, Work.DISTINCT})  # some records have no output there


def wanted(world: World, partition: int, count: int) -> tuple[Array, Array]:
    """Return which outputs and which rejected records a source partition with this many records must lead to.

    Outputs are numbered as they are in the sink, rejected records as in the input.
    """
    numbers = np.arange(count)
    bad = is_bad(numbers, world.bad_every)
    if world.knobs.raises and partition == 0:
        bad |= np.isin(numbers, RAISES)
    if world.work is Work.NONE:
        return ~bad, bad
    copies = {
        Work.EXPLODE: 1 + numbers % FACTOR,
        Work.FILTER: (numbers % 5 != 0).astype(np.int64),
        Work.JOIN: (numbers % 7 != 6).astype(np.int64),
        Work.LOOKUP: (numbers % 7 != 6).astype(np.int64),
        Work.DISTINCT: np.isin(numbers, numbered(world, 0, count)).astype(np.int64),
    }.get(world.work, np.ones(count, dtype=np.int64))
    places = np.arange(count * FACTOR)
    return (places % FACTOR < copies[places // FACTOR]) & ~bad[places // FACTOR], bad
