"""The soak test: many batches in a row, sampling the memory of each kind of process to find leaks.

Run it with `make bench-soak`, or `python -m bench.soak --batches 10000`. Small batches from a backlog run one after
another, because a leak per batch shows soonest that way. The page and its plot go to docs/benchmarks, or to
BENCH_FOLDER; `python -m bench.soak_report FOLDER` writes the page again from its soak.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.counting import check, read, tally
from bench.feeding import fill, topic
from bench.machine import machine
from bench.sides import Side, Stand
from bench.sink import DOCS, HEAP, say
from bench.soak_report import Soaked, keep, write
from bench.workloads import QUICK, SOAK, TAILRACE
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

SAMPLES = 200
HEAPS = 5  # samples of the live heap; few, because each is a full collection, which disturbs a soak
START_LIMIT = 180.0
BATCH_LIMIT = 120.0  # seconds without a batch
LOOK_EVERY = 0.2


def soak(stand: Stand, batches: int) -> Soaked:
    """Run the batches, sampling memory at regular intervals, and check the output."""
    per_batch = SOAK.per_batch or 1
    soaked = Soaked(batches, per_batch, 0.0, {}, {})
    with (
        topic(stand.bootstrap, "in", SOAK.partitions) as source,
        topic(stand.bootstrap, "out", SOAK.partitions) as target,
    ):
        fill(stand.bootstrap, source, SOAK, batches * per_batch)
        say(f"{batches * per_batch:,} records are in the topic")
        with stand.running(SOAK, TAILRACE, source, target) as side:
            _sample(side, soaked)
            side.stop()
        numbers, _ = read(stand.bootstrap, target, SOAK.partitions, SOAK.number)
        count = batches * per_batch
        check(tally(numbers, np.ones(count, dtype=bool)), count, TAILRACE, exactly=True)
    return soaked


def _sample(side: Side, soaked: Soaked) -> None:
    step, next_, done = max(1, soaked.batches // SAMPLES), 0, 0
    collect = every = max(1, soaked.batches // HEAPS)
    began = moved = time.monotonic()
    while done < soaked.batches:
        side.check()
        now = len(side.written())
        if now != done:
            done, moved = now, time.monotonic()
        limit = BATCH_LIMIT if done else START_LIMIT
        if time.monotonic() - moved > limit:
            raise TimeoutError(f"waited {limit:.0f} s for batch {done + 1} of {soaked.batches}\n{side.log}")
        if done >= next_:
            look = side.look()
            for kind, memory in look.memory.items():
                soaked.memory.setdefault(kind, []).append((float(done), memory))
                soaked.cpu.setdefault(kind, []).append((float(done), look.cpu[kind]))
            next_ = done + step
        if done >= collect:
            for kind, size in side.heaps().items():
                soaked.live.setdefault(kind, []).append((float(done), size))
            collect += every
        time.sleep(LOOK_EVERY)
    soaked.seconds = time.monotonic() - began


def main() -> None:
    """Soak, and write the page if asked to."""
    parser = argparse.ArgumentParser(description="Run many small batches in a row and watch the memory.")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="write the page to docs/benchmarks, or to BENCH_FOLDER")
    chosen = parser.parse_args()
    options = EmbeddedOptions(heap=HEAP)
    with EmbeddedKafka(options) as kafka, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        stand = Stand(kafka.bootstrap_servers, kafka.brokers[0].pid, Path(folder), QUICK)
        soaked = soak(stand, chosen.batches)
    soaked.machine = machine()
    for line in soaked.table().splitlines():
        say(line)
    place = os.environ.get("BENCH_FOLDER")
    if chosen.write or place:
        target = Path(place or DOCS)
        target.mkdir(parents=True, exist_ok=True)
        keep(target, soaked)
        write(target, soaked)
        say(f"written: {target / 'soak.md'}")


if __name__ == "__main__":
    main()
