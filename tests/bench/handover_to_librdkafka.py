"""The CPU cost per record of handing rows to librdkafka: complete Arrow batches against one call per record.

Run it by hand: `python tests/bench/handover_to_librdkafka.py`. Both ways write the same rows to the same embedded
Kafka in turn, each in one transaction; CPU is that of this process, which holds the producer.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment, producers
from tailrace.gateway.librdkafka import available
from tailrace.gateway.writing import Deliveries
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka

ROUNDS, BATCHES, ROWS, SIZE = 5, 20, 10_000, 162


def batch() -> pa.RecordBatch:
    """Make rows as the sink passes them on."""
    values = pa.array([os.urandom(SIZE // 2).hex().encode() for _ in range(ROWS)], pa.binary())
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(ROWS, pa.string()),
            pa.nulls(ROWS, pa.int32()),
            pa.array([b"%d" % (number % 1000) for number in range(ROWS)], pa.binary()),
            values,
            pa.nulls(ROWS, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            pa.nulls(ROWS, pa.int64()),
            pa.nulls(ROWS, pa.string()),
        ],
        names=["topic", "partition", "key", "value", "headers", "timestamp", "reason"],
    )


def main() -> None:
    """Print the CPU microseconds per record, both ways, round by round."""
    rows = batch()
    found: dict[str, list[float]] = {"batches": [], "one by one": []}
    with EmbeddedKafka() as kafka:
        bootstrap = kafka.bootstrap_servers
        Cluster(Kafka(bootstrap_servers=bootstrap)).ensure("ledger", 8, 1, LEDGER_SETTINGS)
        topic = Topics(bootstrap)("out", 8)
        deliveries = Deliveries("bench")
        for number in range(ROUNDS + 1):
            for partition, way in enumerate(found):
                setattr(producers, "available", available if way == "batches" else lambda: False)  # noqa: B010
                task = Assignment(
                    pipeline="bench",
                    batch=BatchId(number),
                    partition=SinkPartition(partition),
                    sinks=2,
                    digest="bench",
                    delivery=Delivery.EXACTLY_ONCE,
                    ledger="ledger",
                    topic=topic,
                    rejected=None,
                    run="bench",
                    options=client_options(Kafka(bootstrap_servers=bootstrap)),
                )
                began = time.process_time()
                deliveries.write(task, iter([rows] * BATCHES))
                spent = (time.process_time() - began) / (BATCHES * ROWS) * 1e6
                if number:  # the first round is warm-up
                    found[way].append(spent)
                    sys.stdout.write(f"round {number}  {way:<11} {spent:5.2f} µs of CPU per record\n")
    medians = {way: statistics.median(each) for way, each in found.items()}
    sys.stdout.write(f"median: {medians}; ratio {medians['one by one'] / medians['batches']:.2f}\n")


if __name__ == "__main__":
    main()
