"""The page of the sink benchmark, made from its measurements: docs/benchmarks/sink.md, its plots and sink.json.

`python -m bench.sink_report FOLDER` writes the page again from the folder's sink.json.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figures import AIMS, Aim, Measured, curves, medians, profile, ratios, spreads, steps
from bench.machine import table as machine_table
from bench.processes import KINDS, spark_cpu
from bench.steps import STEPS
from bench.svg import Points, chart
from bench.workloads import (
    BATCH_PARTITIONS,
    CONDITION,
    FAILING,
    FIELDS,
    LATENCY_PARTITIONS,
    NAMES,
    PER_PARTITION,
    RATES,
    SCHEMA,
    SIZE,
    SPARK,
    TUNED_READER,
    TUNED_SPARK,
    Scale,
)

KEPT = "sink.json"
BUSY = 0.1  # cores that an idle machine uses
WORKLOADS = ("raw", "json", *RATES, "batch_64")
MEANING = {
    "throughput_raw": "records/s, raw bytes",
    "cpu_raw": "CPU per record, raw bytes",
    "throughput_json": "records/s, JSON",
    "cpu_json": "CPU per record, JSON",
    "throughput_arrow": "records/s, raw bytes through `process.arrow`",
    "cpu_arrow": "CPU per record, raw bytes through `process.arrow`",
    "p50_1k": "p50 at 1,000 records/s",
    "p99_1k": "p99 at 1,000 records/s",
    "p50_20k": "p50 at 20,000 records/s",
    "p99_20k": "p99 at 20,000 records/s",
    "batch_64": "time of a batch from 64 partitions",
}
COLUMNS = {
    "rate": ("records/s", "{:,.0f}"),
    "seconds": ("batch, ms", "{:,.0f}"),
    "p50": ("p50, ms", "{:,.0f}"),
    "p99": ("p99, ms", "{:,.0f}"),
    "cpu": ("CPU, µs per record", "{:,.2f}"),
}
PAGE = """\
# Tailrace against Spark's own Kafka sink

*`make bench` writes this page and its plots; edit `tests/bench/sink_report.py`.*

Spark's Kafka sink delivers at least once; Tailrace delivers exactly once. This page measures what that costs or saves.
Both sides do the same work on their defaults. A ratio is Tailrace ÷ Spark's sink within one round. The table shows the
median over the rounds ({rounds} here) and each round.

{aims}

![Throughput by round](sink-throughput.svg)

![CPU by round](sink-cpu.svg)

![Latency and batch time by round](sink-latency.svg)

## Medians by side

{sides}

![Latency at 1,000 records/s by percentile](sink-latency_1k.svg)

![Latency at 20,000 records/s by percentile](sink-latency_20k.svg)

![Time of each batch from 64 partitions](sink-batch_64.svg)

## CPU by kind of process

µs per record, median of the rounds. *Spark and below* is the sum without the broker; it is the CPU in the tables above.

{profiles}

## Time of a batch by step

ms on Tailrace's side, median of the batches, then of the rounds. A batch lasts from the end of the previous one to its
own end. Its *look* may include a wait for records; *deliver* is the job: reading, the function and the transactions.

{steps}

## What was measured

- **raw**: {records:,} records of {size} bytes, 8 partitions, value to value. Tailrace's function selects the value;
  `process.arrow` yields it without leaving Arrow.
- **json**: the same number of JSON records of the same size, with the schema `{schema}`.
  Records pass if `{condition}`; one in {failing:,} does not. The output is JSON with the fields {fields}. Spark's side
  uses `from_json`, `where` and `to_json`, and drops what fails. Tailrace validates, and writes what fails to the
  rejected topic.
- **latency_1k, latency_20k**: {partitions} partitions and the default trigger, {seconds:.0f} s at each rate after
  {warm_seconds:.0f} s of warm-up. Latency is the time from the call of `produce` until the poll of a read_committed
  consumer returns the record. The producer has its client's defaults.
- **batch_64**: {per_partition} records from each of {batch_partitions} partitions per batch, {batches} batches after
  {warm_batches} of warm-up, from a backlog. For Spark's side this is its own `triggerExecution`, for Tailrace the time
  from the end of one batch to the end of the next.
- Throughput counts from the moment when the outputs of the first {warm_records:,} records are visible until all
  outputs are. CPU, user and system, is taken at the same two moments.
- After each run every output record is read and its number ticked off. A run fails if one is missing, and on Tailrace's
  side also if one is repeated.

## Machine and settings

{machine}

Each side runs in a process of its own with {spark}. The embedded Kafka runs on the same machine with a heap of {heap};
like every embedded Kafka it uses the JVM's client compiler only. Rounds are interleaved, and every other round runs in
reverse order. {native} {load} {runs}

## Run it again

    make bench

`BENCH_ROUNDS` is the number of rounds. `ONLY=latency,json` measures these again and keeps the other figures.
`BENCH_TUNED=1` tunes Spark's side. `QUICK=1` measures less and writes no page.
The measurements are in [sink.json](sink.json); `PYTHONPATH=tests python -m bench.sink_report docs/benchmarks` writes
this page from them.
"""
DEFAULTS = (
    "Both sides keep their other defaults, so Spark's side takes the entire backlog as one batch, and its fetches wait "
    "up to 500 ms; only in `batch_64` is the number of records per batch set, for both sides."
)
TUNED = "Spark's side is tuned with {settings}."


@dataclass
class Results:
    """Everything that a benchmark measured."""

    scale: Scale
    tuned: bool
    heap: str  # of the broker
    machine: dict[str, str]
    found: list[Measured] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # key of a ratio → reason
    seconds: dict[str, float] = field(default_factory=dict)  # by workload
    runs: list[list[str]] = field(default_factory=list)  # the workloads of each run, if there were several runs

    def document(self) -> dict[str, Any]:
        """Return the results as JSON data, with derived figures first."""
        return {
            "ratios": ratios(self.found),
            "spreads": spreads(self.found),
            "profile": {name: profile(self.found, name) for name in WORKLOADS},
            "rounds": self.scale.rounds,
            **dataclasses.asdict(self),
        }

    def onto(self, before: Results) -> Results:
        """Return these results, completed with those of earlier runs for workloads not measured now."""
        mine, now = {each.workload for each in self.found}, list(self.seconds)
        earlier = [[name for name in run if name not in now] for run in before.by_run]
        return dataclasses.replace(
            self,
            found=[each for each in before.found if each.workload not in mine] + self.found,
            skipped=before.skipped | self.skipped,
            seconds=before.seconds | self.seconds,
            runs=[*(run for run in earlier if run), now],
        )

    @property
    def by_run(self) -> list[list[str]]:
        """The workloads of each run that contributed figures."""
        return self.runs or [list(self.seconds)]

    def alike(self, other: Results) -> bool:
        """Tell whether both were measured with the same settings on the same kind of machine."""
        return all(getattr(self, name) == getattr(other, name) for name in ("scale", "tuned", "heap", "machine"))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Results:
        """Read what `document` returned."""
        names = {each.name for each in dataclasses.fields(cls)}
        kept = {name: value for name, value in document.items() if name in names}
        kept["scale"] = Scale(**kept["scale"])
        kept["found"] = [Measured(**each) for each in kept["found"]]
        return cls(**kept)


def keep(folder: Path, results: Results) -> None:
    """Save the measurements so far."""
    (folder / KEPT).write_text(json.dumps(results.document(), indent=1) + "\n", encoding="utf-8")


def kept(folder: Path) -> Results:
    """Load the saved measurements."""
    return Results.of(json.loads((folder / KEPT).read_text(encoding="utf-8")))


def ratio(rounds: Sequence[float], aim: Aim) -> str:
    """Return the median, each round, and whether the aim is reached."""
    median = statistics.median(rounds)
    reached = "reached" if aim.reached(median) else "not reached"
    return f"{median:.2f} ({', '.join(f'{each:.2f}' for each in rounds)}) {reached}"


def aims(results: Results) -> str:
    """Return a table with a line for each aim."""
    lines = ["| key | what | aim | median | rounds | |", "|---|---|---|---|---|---|"]
    measured = spreads(results.found)
    for key, aim in AIMS.items():
        rounds = measured.get(key)
        if rounds is None:
            cells = ["", "", f"not measured{': ' + results.skipped[key] if key in results.skipped else ''}"]
        else:
            median = statistics.median(rounds)
            reached = "**reached**" if aim.reached(median) else "not reached"
            cells = [f"{median:.2f}", ", ".join(f"{each:.2f}" for each in rounds), reached]
        lines.append(f"| `{key}` | {MEANING[key]} | {aim} | {' | '.join(cells)} |")
    return "\n".join(lines)


def sides(results: Results) -> str:
    """Return a table with a line for each workload and side."""
    lines = [f"| workload | side | {' | '.join(title for title, _ in COLUMNS.values())} |", "|" + "---|" * 7]
    for workload in WORKLOADS:
        for variant, values in medians(results.found, workload).items():
            shown = dict(values)
            if "seconds" in shown:
                shown["seconds"] *= 1000
            cells = [text.format(shown[name]) if name in shown else "" for name, (_, text) in COLUMNS.items()]
            lines.append(f"| {workload} | {NAMES[variant]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def profiles(results: Results) -> str:
    """Return a table of CPU with a line for each workload and side, and a column for each kind of process."""
    found = {name: profile(results.found, name) for name in WORKLOADS}
    kinds = [kind for kind in KINDS if any(each.get(kind) for side in found.values() for each in side.values())]
    names = [KINDS[kind] for kind in kinds]
    lines = [f"| workload | side | Spark and below | {' | '.join(names)} |", "|" + "---|" * (len(kinds) + 3)]
    for workload, by_side in found.items():
        for variant, each in by_side.items():
            cells = [f"{each.get(kind, 0.0):,.2f}" for kind in kinds]
            lines.append(f"| {workload} | {NAMES[variant]} | {spark_cpu(each):,.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_step(results: Results) -> str:
    """Return a table with a line for each of Tailrace's workloads, and a column for each step of a batch."""
    lines = [f"| workload | side | {' | '.join(STEPS.values())} |", "|" + "---|" * (len(STEPS) + 2)]
    for workload in WORKLOADS:
        for variant, each in steps(results.found, workload).items():
            cells = [f"{each[name]:,.1f}" for name in STEPS]
            lines.append(f"| {workload} | {NAMES[variant]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def took(results: Results) -> str:
    """State how long the benchmark took, and which run measured which workloads."""
    minutes = [sum(results.seconds[name] for name in run) / 60 for run in results.by_run]
    if len(minutes) == 1:
        return f"The benchmark took {minutes[0]:.0f} minutes."
    named = [f"{', '.join(run)} in {each:.0f} minutes" for run, each in zip(results.by_run, minutes, strict=True)]
    return f"The figures are from {len(minutes)} runs, one after another: {'; '.join(named)}."


def load(found: Sequence[Measured]) -> str:
    """State whether other programs were busy meanwhile."""
    most = max((each.others for each in found), default=0.0)
    if most < BUSY:
        return "No other program was busy."
    low = min(each.others for each in found)
    return f"Other programs used {low:.1f} to {most:.1f} cores during the runs, so the figures are noisy."


def plots(results: Results) -> dict[str, str]:
    """Draw the ratios by round, the latencies by percentile, and the batches; return each by its file name's suffix."""
    measured = spreads(results.found)
    kinds = {
        "throughput": ("Throughput, Tailrace ÷ Spark's sink", [key for key in AIMS if key.startswith("throughput")]),
        "cpu": ("CPU per record, Tailrace ÷ Spark's sink", [key for key in AIMS if key.startswith("cpu")]),
        "latency": ("Latency and batch time, Tailrace ÷ Spark's sink", [*[k for k in AIMS if k[0] == "p"], "batch_64"]),
    }
    drawn = {}
    for name, (title, keys) in kinds.items():
        series = {key: _numbered(measured[key]) for key in keys if key in measured}
        drawn[name] = chart(title, "round", series)
    for name, rate in RATES.items():
        drawn[name] = chart(f"Latency at {rate:,} records/s, ms", "percentile", _series(results, name, 1.0))
    title = f"Time of a batch from {BATCH_PARTITIONS} partitions, ms"
    drawn["batch_64"] = chart(title, "batch", _series(results, "batch_64", 1000.0))
    return drawn


def _series(results: Results, workload: str, unit: float) -> dict[str, Points]:
    return {NAMES[side]: _numbered([unit * y for y in ys]) for side, ys in curves(results.found, workload).items()}


def _numbered(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(number, value) for number, value in enumerate(values, 1)]


def write(folder: Path, results: Results) -> None:
    """Write the page and its plots."""
    scale = results.scale
    tuned = ", ".join(f"`{name}={value}`" for name, value in {**TUNED_SPARK, **TUNED_READER}.items())
    page = PAGE.format(
        **dataclasses.asdict(scale),
        aims=aims(results),
        sides=sides(results),
        profiles=profiles(results),
        steps=by_step(results),
        size=SIZE,
        schema=SCHEMA,
        condition=CONDITION,
        failing=FAILING,
        fields=", ".join(FIELDS),
        partitions=LATENCY_PARTITIONS,
        batch_partitions=BATCH_PARTITIONS,
        per_partition=PER_PARTITION,
        machine=machine_table(results.machine),
        spark=", ".join(f"`{name}={value}`" for name, value in SPARK.items()),
        heap=results.heap,
        native=TUNED.format(settings=tuned) if results.tuned else DEFAULTS,
        load=load(results.found),
        runs=took(results),
    )
    (folder / "sink.md").write_text(page, encoding="utf-8")
    for name, drawn in plots(results).items():
        (folder / f"sink-{name}.svg").write_text(drawn, encoding="utf-8")


def main(folder: Path) -> None:
    """Write the page again from the saved measurements."""
    write(folder, kept(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
