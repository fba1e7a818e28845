"""The workloads of the sink benchmark: their records, and what each side does with them.

Both sides do the same work on their defaults. The only settings are here, and the same for both: those of the Spark
session, and for `batch_64` the number of records per batch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.config import Pipeline

NATIVE, TAILRACE, ARROW = "native", "tailrace", "tailrace-arrow"
NAMES = {NATIVE: "Spark's sink", TAILRACE: "Tailrace", ARROW: "Tailrace, process.arrow"}
SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.driver.memory": "3g"}
# Settings with which a user of Spark's sink can match Tailrace's default choices; BENCH_TUNED=1 sets them.
TUNED_SPARK = {"spark.kafka.consumer.cache.capacity": "1024"}
TUNED_READER = {"kafka.fetch.max.wait.ms": "5"}

SIZE = 162  # bytes of a record
SCHEMA = "id long, user string, country string, amount double, at long, note string"
CONDITION = "amount >= 0"
FIELDS = ("id", "user", "amount")
FAILING = 1000  # one JSON record in this many does not meet the condition
RATES = {"latency_1k": 1_000, "latency_20k": 20_000}
LATENCY_PARTITIONS = 4
BATCH_PARTITIONS, PER_PARTITION = 64, 20

_random = random.Random(20)
_PADDING = [_random.randbytes(SIZE // 2).hex().encode() for _ in range(997)]

# The functions of Tailrace's pipelines, written next to their configuration.
FUNCTIONS = '''\
"""What the benchmark's pipelines do with their records."""


def plain(frame):
    """Keep the value alone, as the other side does."""
    return frame.select("value")


def project(frame):
    """Keep three of the fields."""
    return frame.select({fields})


def copy(batches):
    """Keep the value alone, without leaving Arrow."""
    for batch in batches:
        yield batch.select(["value"])
'''.format(fields=", ".join(f'"{name}"' for name in FIELDS))


@dataclass(frozen=True)
class Scale:
    """How much is measured, and how much is processed as warm-up and not counted."""

    records: int
    warm_records: int
    seconds: float
    warm_seconds: float
    batches: int
    warm_batches: int
    rounds: int


FULL = Scale(3_000_000, 3_000_000, 60.0, 15.0, 60, 20, 3)
QUICK = Scale(600_000, 300_000, 10.0, 6.0, 20, 5, 1)


@dataclass(frozen=True)
class Workload:
    """One kind of work; `number` recovers from an output record the number that `record` was given."""

    name: str
    partitions: int
    record: Callable[[int], bytes]
    number: Callable[[bytes], int]
    processes: Mapping[str, Mapping[str, Any]]  # variant of Tailrace → section `process`
    source: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    per_batch: int | None = None
    spark: Mapping[str, str] = field(default_factory=lambda: SPARK)
    failing: int | None = None  # one record in this many is left out of the output

    def accepts(self, number: int) -> bool:
        """Tell whether the record with this number belongs to the output."""
        return self.failing is None or number % self.failing != self.failing - 1

    def outputs(self, records: int) -> int:
        """Count the outputs of the first `records` records."""
        return records if self.failing is None else records - records // self.failing


def raw_record(number: int) -> bytes:
    """Return a record of incompressible text that begins with its number."""
    return b"%09d" % number + _PADDING[number % len(_PADDING)][9:]


def raw_number(value: bytes) -> int:
    """Return the number of a raw record."""
    return int(value[:9])


def json_record(number: int) -> bytes:
    """Return a JSON record; every FAILING-th does not meet the condition."""
    amount = -1.0 if number % FAILING == FAILING - 1 else number % 4000 / 4
    text = (
        f'{{"id":{number},"user":"user-{number % 1_000_003}","country":"NL","amount":{amount},'
        f'"at":{1_700_000_000_000 + number},"note":"'
    )
    return text.encode() + _PADDING[number % len(_PADDING)][: SIZE - 2 - len(text)] + b'"}'


def json_number(value: bytes) -> int:
    """Return the number of a projected JSON record, whose first field is `id`."""
    return int(value[value.index(b":") + 1 : value.index(b",")])


def projected(value: bytes) -> dict[str, Any]:
    """Return the fields that the output for a JSON record must hold."""
    record = json.loads(value)
    return {name: record[name] for name in FIELDS}


def arrow_missing() -> str:
    """Return why `process.arrow` cannot be measured, or nothing if it can."""
    section: Any = Pipeline.model_fields["process"].annotation
    if "arrow" in getattr(section, "model_fields", {}):
        return ""
    return "this version's configuration has no key `process.arrow`"


_PLAIN = {"function": "functions.py:plain"}
RAW = Workload(
    "raw", 8, raw_record, raw_number, {TAILRACE: _PLAIN, ARROW: {"arrow": "functions.py:copy"}}, {}, {"format": "raw"}
)
JSON = Workload(
    "json",
    8,
    json_record,
    json_number,
    {TAILRACE: {"function": "functions.py:project", "validate": {"amount": CONDITION}}},
    {"format": "json", "schema": SCHEMA},
    {"format": "json"},
    failing=FAILING,
)
LATENCY = Workload(
    "latency", LATENCY_PARTITIONS, raw_record, raw_number, {TAILRACE: _PLAIN}, {}, {"format": "raw"}
)  # its records are feeding.stamped's
BATCH = Workload(
    "batch_64", BATCH_PARTITIONS, raw_record, raw_number, {TAILRACE: _PLAIN}, {}, {"format": "raw"},
    per_batch=BATCH_PARTITIONS * PER_PARTITION,
)  # fmt: skip
SOAK = Workload(
    "soak", 4, raw_record, raw_number, {TAILRACE: _PLAIN}, {}, {"format": "raw"}, per_batch=100,
    spark={**SPARK, "spark.driver.memory": "1g"},  # a small heap fills sooner, which shows a leak sooner
)  # fmt: skip
WORKLOADS = {each.name: each for each in (RAW, JSON, LATENCY, BATCH)}


def order(variants: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the variants in the order of this round: every other round is reversed."""
    return variants if number % 2 else variants[::-1]


def spark_settings(tuned: bool) -> dict[str, str]:
    """Return the settings of the native side's session: Tailrace's, and those of BENCH_TUNED."""
    return {**SPARK, **(TUNED_SPARK if tuned else {})}


def pipeline(workload: Workload, variant: str, name: str, bootstrap: str, source: str, target: str) -> dict[str, Any]:
    """Return the configuration of Tailrace's side: defaults, apart from names, formats and the function."""
    configuration: dict[str, Any] = {
        "pipeline": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "source": {"topics": [source], **workload.source},
        "process": dict(workload.processes[variant]),
        "sink": {"topic": target, **workload.sink},
        "spark": dict(workload.spark),
    }
    if workload.per_batch is not None:
        configuration["batch"] = {"max_records": workload.per_batch, "target": 0}
    return configuration


def native(workload: Workload, bootstrap: str, source: str, target: str, tuned: bool) -> dict[str, Any]:
    """Return the specification of the native side: see native.py."""
    reader = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    reader |= TUNED_READER if tuned else {}
    if workload.per_batch is not None:
        reader["maxOffsetsPerTrigger"] = str(workload.per_batch)
    return {
        "settings": spark_settings(tuned),
        "reader": reader,
        "writer": {"kafka.bootstrap.servers": bootstrap, "topic": target},
        "json": workload.source.get("format") == "json",
    }
