"""The sink benchmark: Tailrace against Spark's own at-least-once Kafka sink in throughput, CPU, latency, batch time.

Run it with `make bench`; QUICK=1 measures less and writes no page. Both sides do the same work on their defaults, each
in its own process, in interleaved rounds whose order alternates (BENCH_ROUNDS, 3), with one embedded Kafka per
workload. The figures that count are ratios within a round, Tailrace ÷ native. BENCH_TUNED=1 sets on the native side
what Tailrace chooses by default. The page goes to docs/benchmarks, or to BENCH_FOLDER; sink_report.py writes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException

from bench.draining import drain
from bench.feeding import fill, topic
from bench.figures import AIMS, Measured, spreads
from bench.latency import measure
from bench.machine import machine
from bench.processes import KINDS
from bench.sides import BenchFailed, Stand
from bench.sink_report import KEPT, Results, keep, kept, ratio, write
from bench.workloads import (
    ARROW,
    FULL,
    LATENCY,
    NATIVE,
    QUICK,
    WORKLOADS,
    Scale,
    Workload,
    arrow_missing,
    order,
)
from tailrace.errors import TailraceError
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

HEAP = "1g"  # of the broker: four times the embedded Kafka's default
BROKER = {"log.segment.delete.delay.ms": "1000"}  # a deleted topic leaves the disk soon
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"

Run = Callable[[str, int], list[Measured]]  # a variant and the number of the round


def say(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def stand(scale: Scale, tuned: bool) -> Iterator[Stand]:
    """Start a broker for one workload."""
    options = EmbeddedOptions(heap=HEAP, settings=BROKER)
    with EmbeddedKafka(options) as kafka, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        yield Stand(kafka.bootstrap_servers, kafka.brokers[0].pid, Path(folder), scale, tuned)


@contextmanager
def prepared(place: Stand, workload: Workload) -> Iterator[Run]:
    """Fill the workload's source, and offer a function that runs one side over it."""
    scale = place.scale
    if workload is LATENCY:
        yield lambda variant, number: measure(place, variant, number)
        return
    warm, counted = scale.warm_records, scale.records
    if workload.per_batch is not None:
        warm, counted = scale.warm_batches * workload.per_batch, scale.batches * workload.per_batch
    with topic(place.bootstrap, "in", workload.partitions) as source:
        fill(place.bootstrap, source, workload, warm + counted)
        yield lambda variant, number: [drain(place, workload, variant, source, number, warm, warm + counted)]


def variants(workload: Workload, results: Results) -> tuple[str, ...]:
    """Return the sides of this workload; note those that cannot be measured, with the reason."""
    found = (NATIVE, *workload.processes)
    missing = arrow_missing()
    if ARROW in found and missing:
        for key in (key for key, aim in AIMS.items() if aim.variant == ARROW):
            results.skipped[key] = missing
        say(f"{workload.name}: {ARROW} is skipped: {missing}")
        return tuple(each for each in found if each != ARROW)
    return found


def rounds(workload: Workload, results: Results, save: Callable[[], None]) -> bool:
    """Measure a workload in interleaved rounds; return False if a side failed, which ends this workload."""
    sides = variants(workload, results)
    began = time.monotonic()
    try:
        with stand(results.scale, results.tuned) as place, prepared(place, workload) as run:
            for number in range(1, results.scale.rounds + 1):
                for variant in order(sides, number):
                    for each in run(variant, number):
                        results.found.append(each)
                        say(line(each))
                save()
    except (BenchFailed, TimeoutError, subprocess.SubprocessError, KafkaException, TailraceError) as error:
        say(f"{workload.name} failed: {error}")
        return False
    finally:
        results.seconds[workload.name] = time.monotonic() - began
    return True


def line(one: Measured) -> str:
    """Describe one run in a line."""
    values = {
        "rate": "{:,.0f} records/s",
        "seconds": "{:.3f} s per batch",
        "p50": "p50 {:.0f} ms",
        "p99": "p99 {:.0f} ms",
        "fed": "fed {:,.0f}/s",
        "cpu": "{:.2f} µs of CPU per record",
    }
    said = [text.format(one.values[name]) for name, text in values.items() if name in one.values]
    kinds = [f"{kind} {one.profile[kind]:.2f}" for kind in KINDS if one.profile.get(kind)]
    head = f"{one.workload:<11} round {one.round}  {one.variant:<14}"
    return f"{head} {'  '.join(said)} ({', '.join(kinds)}; others {one.others:.2f} cores)"


def closing(results: Results) -> list[str]:
    """Return the ratios, one per line."""
    measured = spreads(results.found)
    said = []
    for key, aim in AIMS.items():
        reached = ratio(measured[key], aim) if key in measured else results.skipped.get(key, "not measured")
        said.append(f"{key:<17} {aim!s:<7} {reached}")
    return said


def main() -> None:
    """Measure the named workloads, or all; then print the ratios, and write the page if asked to."""
    parser = argparse.ArgumentParser(description="Measure Tailrace against Spark's own Kafka sink.")
    parser.add_argument("--quick", action="store_true", help="fewer records and one round, as a smoke test")
    parser.add_argument("--write", action="store_true", help="write the page to docs/benchmarks, or to BENCH_FOLDER")
    parser.add_argument("--only", default=",".join(WORKLOADS), help=f"of {','.join(WORKLOADS)}, separated by commas")
    chosen = parser.parse_args()
    unknown = set(chosen.only.split(",")) - set(WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    scale = QUICK if chosen.quick else FULL
    scale = dataclasses.replace(scale, rounds=int(os.environ.get("BENCH_ROUNDS", scale.rounds)))
    results = Results(scale, tuned=os.environ.get("BENCH_TUNED") == "1", heap=HEAP, machine=machine())
    given = os.environ.get("BENCH_FOLDER")
    folder = Path(given or DOCS) if chosen.write or given else None
    before = None
    if folder is not None and set(chosen.only.split(",")) != set(WORKLOADS) and (folder / KEPT).exists():
        before = kept(folder)  # the page keeps its other figures
        if not before.alike(results):
            parser.error(
                f"{folder / KEPT} was measured on another machine or with other settings; measure all workloads"
            )

    def combined() -> Results:
        return results if before is None else results.onto(before)

    def save() -> None:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            keep(folder, combined())

    began = time.monotonic()
    done = [rounds(WORKLOADS[name], results, save) for name in chosen.only.split(",")]
    for said in closing(results):
        say(said)
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if not all(done):
        raise SystemExit(1)
    if folder is not None:
        save()
        write(folder, combined())
        say(f"written: {folder / 'sink.md'}")


if __name__ == "__main__":
    main()
