"""The page of the churn experiment, made of what was measured: docs/benchmarks/churn.md and its plots."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bench.churn_ride import PARTITIONS, PER_PARTITION
from bench.svg import chart

NAMES = {
    "per-partition": "a producer for each partition of each batch",
    "broadcast": "broadcast, made on first use",
    "singleton": "singleton map by configuration",
    "pool": "borrowed from a pool of 4",
    "spark": "Spark's own sink and its cache",
    "tailrace-exactly-once": "Tailrace, exactly once",
    "tailrace-at-least-once": "Tailrace, at least once",
}
PAGE = """\
# Producers that come and go: what they do to a broker

*This page and its plots are written by `make bench-churn`; change them in `tests/bench/churn_report.py`.*

The scene of a report of 2017: a Spark stream with batches every 500 ms and {partitions} partitions, and a new producer
for each partition of each batch, as the documentation of the time had it. Within days the brokers did little else than
collect garbage; their heaps were full of JMX metrics of producers long gone. This is that scene, in small, for each way
of producing that such reports describe, and for Tailrace's writer.

## What was measured

{batches} batches of {partitions} × {each} records of 200 bytes, for each way; {cores} cores for broker and client
together, Spark on two slots, the embedded Kafka with its heap of 256 MB. Each way has a broker of its own, freshly
started, and the same records. One run.

{table}

- *Producers* and *connections* are counted by the broker: names of clients that have produced, or requests for a
  producer id where those are more; connections accepted. The driver's and Spark's own consumers are among the
  connections.
- *Beans* are the broker's JMX metrics that are named for a client (`kafka.server:client-id=…`), those that were there
  before taken off. *Ids* are the producer ids that the broker keeps, for a day, of producers that are idempotent or
  transactional.
- *Heap* is the broker's after a whole collection, before the first batch and after the last; *GC* is what the broker's
  own collections took, without those that were asked for in order to look.
- *Threads* and *memory* are the client's with all its processes (driver, JVM, Python workers, writer), the greatest
  that was seen. *Batch* is Spark's `triggerExecution` without the first third of the batches, which warm up.

![Producers made](churn-producers.svg)

![Metric beans of clients in the broker](churn-beans.svg)

![The broker's heap after a collection](churn-heap.svg)

![Time of a batch](churn-batches.svg)

## How to read it

{reading}

## What it is not

- Not days: a broker lets go of a client's beans when it has not heard of it for an hour, and of a producer's id after a
  day. What grows here grows for that long in a stream that runs, and then stays at that height: with a batch every
  500 ms, {partitions} partitions and one hour, {hour:,} clients.
- A broker of today keeps metrics for each client only where quotas are set, as clusters that are shared have them. So
  every client has a quota here that none reaches.
- The producers of the first four ways are those of Python users: confluent-kafka's, with its defaults, and numbered as
  Java's are by default. Under one name there would be fewer beans, and as many connections. Made idempotent, as Java's
  are, each would wait for a producer id too, half a second with librdkafka's defaults, and leave that behind.
  Spark's own are Java's, with their defaults.
- A process of Python for each slot stands where one JVM stood in the reports: a singleton or a pool there is one for
  each worker.
- Ways that are at least once are not compared with exactly once in what they promise, only in what they cost.

## Run it again

    make bench-churn

`CHURN_BATCHES` is the number of batches ({batches} here), `CHURN_WAYS` a list of ways, separated by commas. It took
{minutes:.0f} minutes.
"""


class Ridden(Protocol):
    """What was measured of one way."""

    way: str
    seconds: list[float]
    took: float

    @property
    def looks(self) -> list[dict[str, float]]:
        """What was seen, look by look."""


def write(folder: Path, found: Sequence[Ridden], batches: int) -> None:
    """The page and its plots."""
    page = PAGE.format(
        batches=batches,
        partitions=PARTITIONS,
        each=PER_PARTITION,
        cores=os.cpu_count(),
        table=table(found),
        reading=reading(found),
        hour=2 * 3600 * PARTITIONS,
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


def table(found: Sequence[Ridden]) -> str:
    """One line for each way."""
    columns: dict[str, Callable[[Ridden], str]] = {
        "way": lambda one: NAMES[one.way],
        "producers": lambda one: _last(one, "producers"),
        "connections": lambda one: _last(one, "made"),
        "beans": lambda one: _last(one, "client_beans"),
        "ids": lambda one: _last(one, "ids"),
        "heap, MB": lambda one: f"{_mb(one.looks[-1]['heap_before'])} → {_mb(one.looks[-1]['heap'])}",
        "GC, ms": lambda one: _last(one, "gc_ms"),
        "broker's memory, MB": lambda one: _mb(one.looks[-1]["broker_rss"]),
        "client's threads": lambda one: f"{max(each['client_threads'] for each in one.looks):.0f}",
        "client's memory, MB": lambda one: _mb(max(each["client_rss"] for each in one.looks)),
        "batch p50, ms": lambda one: f"{statistics.median(_warm(one.seconds)) * 1000:.0f}",
        "batch p95, ms": lambda one: f"{_high(_warm(one.seconds)) * 1000:.0f}",
    }
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(show(one) for show in columns.values())} |" for one in found]
    return "\n".join(lines)


def reading(found: Sequence[Ridden]) -> str:
    """What grows with the batches and what does not, by the second half of each run."""
    lines = []
    for one in found:
        half = one.looks[len(one.looks) // 2 - 1] if len(one.looks) > 1 else one.looks[0]
        last = one.looks[-1]
        batches = max(1.0, last["batch"] - half["batch"])
        made, beans = last["producers"] - half["producers"], last["client_beans"] - half["client_beans"]
        heap = (last["heap"] - half["heap"]) / 2**10 / batches
        lines.append(
            f"- **{NAMES[one.way]}**: in its second half {made / batches:.1f} producers and "
            f"{beans / batches:.1f} beans with each batch, and {heap:+.0f} kB of the broker's heap."
        )
    return "\n".join(lines)


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
    """Medians of five neighbours, so that lines can be told apart."""
    found = []
    for number in range(len(seconds)):
        near = seconds[max(0, number - 2) : number + 3]
        found.append((number + 1.0, statistics.median(near)))
    return found
