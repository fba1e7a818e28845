"""The page of the churn experiment, made of what was measured: docs/benchmarks/churn.md and its plots.

`python -m bench.churn_report FOLDER` writes it anew from the folder's churn.json, without measuring again.
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
QUIET = 0.1  # cores: what a machine does by itself
PAGE = """\
# Producers that come and go: what they do to a broker

*This page and its plots are written by `make bench-churn`; change them in `tests/bench/churn_report.py`.*

The scene of a report of 2017: a Spark stream with batches every 500 ms and {partitions} partitions, and a new producer
for each partition of each batch, as the documentation of the time had it. Within days the brokers did little else than
collect garbage; their heaps were full of JMX metrics of producers long gone. This is that scene, in small, for each way
of producing that such reports describe, and for Tailrace's gateway.

## What was measured

{batches} batches of {partitions} × {each} records of 200 bytes, for each way; {cores} cores for broker and client
together, Spark on two slots, the embedded Kafka with its heap of 256 MB. Each way has a broker of its own, freshly
started, and the same records. One run. {load}

At the broker:

{broker}

At the client, which is driver, JVM, Python workers and gateway together:

{client}

- *Producers* and *connections* are counted by the broker: names of clients that have produced, or requests for a
  producer id where those are more; connections accepted. The driver's and Spark's own consumers are among the
  connections.
- *Beans* are the broker's JMX metrics that are named for a client (`kafka.server:client-id=…`), those that were there
  before taken off. *Ids* are the states of idempotent or transactional producers that the broker keeps
  (`ProducerIdCount`): one for each partition that a producer has written to within a day. Each of Tailrace's
  {partitions} transactional writers meets each of the {partitions} partitions sooner or later, for the records have no
  key, and its marker's: {most:,} at most, and no more than that for ever.
- *Heap* is the broker's after a whole collection, before the first batch and after the last; *GC* is what the broker's
  own collections took, without those that were asked for in order to look.
- *CPU* is that of a batch, over the second half of the batches. *Threads* and *memory* of the client are the greatest
  that were seen. *Batch* is Spark's `triggerExecution` without the first third of the batches, which warm up.

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
  each worker. The pool makes a producer when none is idle, up to four; a worker runs one task at a time, so one is what
  it needs.
- Consumers are not what is compared: Spark keeps as many for each way as there are partitions
  ([0025](../decisions/0025-more-consumers-than-sparks-64.md)). With its default they would come and go as well.
- Ways that are at least once are not compared with exactly once in what they promise, only in what they cost.

## Run it again

    make bench-churn

`CHURN_BATCHES` is the number of batches ({batches} here), `CHURN_WAYS` a list of ways, separated by commas. It took
{minutes:.0f} minutes. What was measured is in [churn.json](churn.json); `PYTHONPATH=tests python -m bench.churn_report
docs/benchmarks` writes this page from it.
"""


@dataclass
class Ridden:
    """What was measured of one way."""

    way: str
    seconds: list[float] = field(default_factory=list)  # of each batch
    looks: list[dict[str, float]] = field(default_factory=list)  # with the batch's number
    took: float = 0.0
    others: float = 0.0  # cores that were busy with something else


def keep(folder: Path, found: Sequence[Ridden], batches: int) -> None:
    """What was measured so far, as it is."""
    told = {"batches": batches, "ways": [dataclasses.asdict(each) for each in found]}
    (folder / KEPT).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def write(folder: Path, found: Sequence[Ridden], batches: int) -> None:
    """The page and its plots."""
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
    """Whether the machine did something else meanwhile, and what that means."""
    low, high = min(each.others for each in found), max(each.others for each in found)
    if high < QUIET:
        return "The machine did nothing else."
    return (
        f"Other programs were busy on {low:.1f} to {high:.1f} of the cores meanwhile, by way: what is counted does not "
        "depend on that, the times of the batches and of the collections do, and the CPU a little."
    )


def table(found: Sequence[Ridden], columns: Mapping[str, Callable[[Ridden], str]]) -> str:
    """One line for each way."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(show(one) for show in columns.values())} |" for one in found]
    return "\n".join(lines)


def reading(found: Sequence[Ridden]) -> str:
    """What grows with the batches and what does not, by the second half of each run."""
    lines = []
    for one in found:
        half, last, batches = _second_half(one)
        made, beans = last["producers"] - half["producers"], last["client_beans"] - half["client_beans"]
        heap = (last["heap"] - half["heap"]) / 2**10 / batches
        lines.append(
            f"- **{NAMES[one.way]}**: in its second half {made / batches:.1f} producers and "
            f"{beans / batches:.1f} beans with each batch, and {heap:+.0f} kB of the broker's heap."
        )
    return "\n".join(lines)


def _second_half(one: Ridden) -> tuple[dict[str, float], dict[str, float], float]:
    """Its first look and its last, and the batches between them."""
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
    """Medians of five neighbours, so that lines can be told apart."""
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
    """The page again, of what was measured then."""
    told = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    write(folder, [Ridden(**each) for each in told["ways"]], told["batches"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
