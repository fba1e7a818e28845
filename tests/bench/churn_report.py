"""The page of the churn benchmark, made from its measurements: docs/benchmarks/churn.md and its plots.

`python -m bench.churn_report FOLDER` writes it again from the folder's churn.json, without measuring.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.churn_ride import PARTITIONS, PER_PARTITION
from bench.svg import chart

NAMES = {
    "per-partition": "a producer for each partition of each batch",
    "broadcast": "broadcast, made on first use",
    "singleton": "singleton map by configuration",
    "pool": "borrowed from a pool",
    "spark": "Spark's own sink and its cache",
    "tailrace-exactly-once": "Tailrace, exactly once",
    "tailrace-at-least-once": "Tailrace, at least once",
}
KEPT = "churn.json"
QUIET = 0.1  # cores that an idle machine uses
PAGE = """\
# Producer churn: what short-lived producers do to a broker

*`make bench-churn` writes this page and its plots; edit `tests/bench/churn_report.py`.*

A report of 2017 describes a Spark stream with batches every 500 ms and {partitions} partitions that made a new producer
for each partition of each batch, as the documentation of the time advised. Within days the brokers did little but
collect garbage: their heaps were full of JMX metrics of dead producers. This page reproduces that on a small scale, for
each way of producing that such reports describe, and for Tailrace's gateway.

## What was measured

{batches} batches of {partitions} × {each} records of 200 bytes for each way; {cores} cores for broker and client
together, Spark on two slots, the embedded Kafka with its heap of 256 MB. Each way gets a freshly started broker and the
same records. One run. {load}

At the broker:

{broker}

At the client (driver, JVM, Python workers and gateway together):

{client}

- *Producers* and *connections* are the broker's counts. Producers: client names that have produced, or requests for a
  producer id if there were more. Connections: those accepted, including the driver's and Spark's own consumers.
- *Beans* are the broker's JMX metrics that are named for a client (`kafka.server:client-id=…`), minus those that
  existed before. *Ids* are the states of idempotent or transactional producers that the broker keeps
  (`ProducerIdCount`): one for each partition that a producer has written to within a day. The records have no key, so
  each of Tailrace's {partitions} transactional producers eventually writes to each of the {partitions} partitions, and
  to its marker's: at most {most:,} ids, a fixed limit.
- *Heap* is the broker's after a full collection, before the first batch and after the last; *GC* is the time of the
  broker's own collections, without those that the benchmark requested.
- *CPU* is per batch, over the second half of the batches. *Threads* and *memory* of the client are the maximum.
  *Batch* is Spark's `triggerExecution` without the first third of the batches, which are the warm-up.

![Producers made](churn-producers.svg)

![Metric beans of clients in the broker](churn-beans.svg)

![The broker's heap after a collection](churn-heap.svg)

![Time of a batch](churn-batches.svg)

## How to read it

{reading}

## Limits of this benchmark

- It does not run for days. A broker drops a client's beans when it has not heard from the client for an hour, and a
  producer's id after a day. In a continuous stream, what grows here grows for that long and then levels off: with a
  batch every 500 ms, {partitions} partitions and one hour, at {hour:,} clients.
- A current broker keeps metrics per client only if quotas are set, as on shared clusters. So every client here has a
  quota that none reaches.
- The producers of the first four ways are confluent-kafka's, as Python users have them, with its defaults, and numbered
  as Java's are by default. With one common name there would be fewer beans, but as many connections. If they were
  idempotent, as Java's are, each would also wait for a producer id, half a second with librdkafka's defaults, and leave
  that id behind. Spark's own producers are Java's, with their defaults.
- The reports had one JVM; here each slot has a Python process, so each worker has its own singleton or pool. The pool
  makes a producer if none is idle, up to four; a worker runs one task at a time, so it needs only one.
- Consumers are not compared: for each way Spark keeps as many as there are partitions
  ([0025](../decisions/0025-more-consumers-than-sparks-64.md)). With its default, consumers would be short-lived, too.
- At-least-once and exactly-once ways differ in what they promise; this page compares only what they cost.

## Run it again

    make bench-churn

`CHURN_BATCHES` is the number of batches ({batches} here), `CHURN_WAYS` a list of ways, separated by commas. The
benchmark took {minutes:.0f} minutes. The measurements are in [churn.json](churn.json); `PYTHONPATH=tests python -m
bench.churn_report docs/benchmarks` writes this page from them.
"""


@dataclass
class Ridden:
    """The measurements of one way."""

    way: str
    seconds: list[float] = field(default_factory=list)  # of each batch
    looks: list[dict[str, float]] = field(default_factory=list)  # samples, each with its batch's number
    took: float = 0.0
    others: float = 0.0  # cores that other programs used


def keep(folder: Path, found: Sequence[Ridden], batches: int) -> None:
    """Save the measurements so far."""
    document = {"batches": batches, "ways": [dataclasses.asdict(each) for each in found]}
    (folder / KEPT).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write(folder: Path, found: Sequence[Ridden], batches: int) -> None:
    """Write the page and its plots."""
    page = PAGE.format(
        batches=batches,
        partitions=PARTITIONS,
        each=PER_PARTITION,
        cores=os.cpu_count(),
        load=load(found),
        broker=table(found, AT_THE_BROKER),
        client=table(found, AT_THE_CLIENT),
        reading=reading(found),
        hour=2 * 3600 * PARTITIONS,
        most=PARTITIONS * (PARTITIONS + 1),
        minutes=sum(each.took for each in found) / 60,
    )
    (folder / "churn.md").write_text(page, encoding="utf-8")
    plots = {
        "producers": ("Producers made", _looks(found, "producers"), True),
        "beans": ("Metric beans of clients in the broker", _looks(found, "client_beans"), True),
        "heap": ("The broker's heap after a collection, MB", _looks(found, "heap", 2**20), False),
        "batches": ("Time of a batch, s", {_short(each): _smooth(each.seconds) for each in found}, False),
    }
    for name, (title, series, logarithmic) in plots.items():
        drawn = chart(title, "batch", series, logarithmic=logarithmic)
        (folder / f"churn-{name}.svg").write_text(drawn, encoding="utf-8")


def load(found: Sequence[Ridden]) -> str:
    """State whether other programs were busy meanwhile, and what that affects."""
    low, high = min(each.others for each in found), max(each.others for each in found)
    if high < QUIET:
        return "No other program was busy."
    return (
        f"Other programs used {low:.1f} to {high:.1f} cores meanwhile, depending on the way. This does not affect the "
        "counts, only the times of batches and collections, and slightly the CPU."
    )


def table(found: Sequence[Ridden], columns: Mapping[str, Callable[[Ridden], str]]) -> str:
    """Return a table with a line for each way."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(show(one) for show in columns.values())} |" for one in found]
    return "\n".join(lines)


def reading(found: Sequence[Ridden]) -> str:
    """List what grows with each batch, from the second half of each run."""
    lines = []
    for one in found:
        half, last, batches = _second_half(one)
        made, beans = last["producers"] - half["producers"], last["client_beans"] - half["client_beans"]
        heap = (last["heap"] - half["heap"]) / 2**10 / batches
        lines.append(
            f"- **{NAMES[one.way]}**: {made / batches:.1f} producers, {beans / batches:.1f} beans and "
            f"{heap:+.0f} kB of the broker's heap per batch, in the second half of the run."
        )
    return "\n".join(lines)


def _second_half(one: Ridden) -> tuple[dict[str, float], dict[str, float], float]:
    """Return the first and the last sample of the second half, and the number of batches between them."""
    half = one.looks[len(one.looks) // 2 - 1] if len(one.looks) > 1 else one.looks[0]
    last = one.looks[-1]
    return half, last, max(1.0, last["batch"] - half["batch"])


def _cpu(one: Ridden, name: str) -> str:
    half, last, batches = _second_half(one)
    return f"{(last[name] - half[name]) / batches * 1000:,.0f}"


def _looks(found: Sequence[Ridden], name: str, unit: float = 1) -> dict[str, list[tuple[float, float]]]:
    return {_short(one): [(each["batch"], each[name] / unit) for each in one.looks] for one in found}


def _short(one: Ridden) -> str:
    return one.way.replace("-", " ")


def _last(one: Ridden, name: str) -> str:
    return f"{one.looks[-1][name]:,.0f}"


def _mb(size: float) -> str:
    return f"{size / 2**20:.0f}"


def _warm(seconds: list[float]) -> list[float]:
    return seconds[len(seconds) // 3 :]


def _high(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * 95 // 100)]


def _smooth(seconds: list[float]) -> list[tuple[float, float]]:
    """Return medians of five neighbours, so that the lines can be distinguished."""
    found = []
    for number in range(len(seconds)):
        near = seconds[max(0, number - 2) : number + 3]
        found.append((number + 1.0, statistics.median(near)))
    return found


AT_THE_BROKER: dict[str, Callable[[Ridden], str]] = {
    "way": lambda one: NAMES[one.way],
    "producers": lambda one: _last(one, "producers"),
    "connections": lambda one: _last(one, "made"),
    "beans": lambda one: _last(one, "client_beans"),
    "ids": lambda one: _last(one, "ids"),
    "heap, MB": lambda one: f"{_mb(one.looks[-1]['heap_before'])} → {_mb(one.looks[-1]['heap'])}",
    "GC, ms": lambda one: _last(one, "gc_ms"),
    "CPU, ms": lambda one: _cpu(one, "broker_cpu"),
    "memory, MB": lambda one: _mb(one.looks[-1]["broker_rss"]),
}
AT_THE_CLIENT: dict[str, Callable[[Ridden], str]] = {
    "way": lambda one: NAMES[one.way],
    "threads": lambda one: f"{max(each['client_threads'] for each in one.looks):.0f}",
    "memory, MB": lambda one: _mb(max(each["client_rss"] for each in one.looks)),
    "CPU, ms": lambda one: _cpu(one, "client_cpu"),
    "batch p50, ms": lambda one: f"{statistics.median(_warm(one.seconds)) * 1000:.0f}",
    "batch p95, ms": lambda one: f"{_high(_warm(one.seconds)) * 1000:.0f}",
}


def main(folder: Path) -> None:
    """Write the page again from the saved measurements."""
    document = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    write(folder, [Ridden(**each) for each in document["ways"]], document["batches"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
