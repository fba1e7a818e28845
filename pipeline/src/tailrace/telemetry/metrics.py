"""Every metric, declared once: its name, unit, labels and help; and the names of what is observed in the data's way.

What is exported is made from these declarations (`telemetry`), and so is docs/metrics.md. The number of series is
bounded by what is configured: pipelines, topic partitions, groups of sink partitions, brokers, reasons; never by
records, batches or runs. Each metric's first label is `pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Named observations of Spark (`df.observe`): they are in the query's progress and in Spark's UI.
READ: Final = "tailrace.read"
WRITTEN: Final = "tailrace.written"

CONSUMED: Final = "consumed"
SIZE: Final = "size"  # bytes of what was consumed, keys and values
PRODUCED: Final = "produced"
REJECTED: Final = "rejected"


class Kind(StrEnum):
    """What Prometheus calls its type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric. Its name ends with its unit, and a counter's with `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", ("pipeline", *self.labels))


GROUP_WIDTH: Final = 16  # sink partitions with one value of the label `group`
GROUPS: Final = 8  # groups of that width; what is beyond is one more
PIPELINES: Final = 16  # of one gateway that have series of their own; any other is `other`
REASONS: Final = 64  # for which records are rejected; any other is `other`
OTHER: Final = "other"

# Why a producer is not used again: what a reason of the cache has before its colon.
RETIREMENTS: Final = (
    "idle", "exit", "failed", "earlier run", "moved", "another attempt", "not delivered", "fatal", "connection",
    "slow commit", "state",
)  # fmt: skip

LABELS: Final = {
    "pipeline": "The pipeline's name; for `format(\"tailrace\")` the query's id.",
    "group": f"Sink partitions, {GROUP_WIDTH} together: `0-15`, `16-31`, … and `{GROUP_WIDTH * GROUPS}+`.",
    "kind": "Of producers: `sink` (transactional, of one sink partition), `shared` (at-least-once), `reader` (reads "
    "markers, writes nothing).",
    "reason": "Of producers: "
    + ", ".join(f"`{each}`" for each in RETIREMENTS)
    + ". Of records: why they were rejected, "
    "as the header `tailrace.reason` has it.",
    "phase": "Of a batch: `look`, `choose`, `ledger` (the plan's transaction), `deliver`; with state Spark's own names "
    "(`latestOffset`, `queryPlanning`, `walCommit`, `addBatch`, `commitOffsets`), and Tailrace's parts of `addBatch`: "
    "`cut`, `ledger`, `deliver`, `after`. "
    "Of a driver: `starting`, `standby`, `leading`, `stopping`.",
    "process": "`driver` and `driver-jvm`; `gateway`, `executor-jvm` and `workers` (the Python workers of an executor, "
    "together).",
    "collector": "The JVM's collector, as it calls itself.",
    "generation": "Python's: 0, 1 or 2.",
    "broker": "The broker's number; `coordinator`: requests about transactions; `bootstrap`: the first connection.",
    "quantile": "`0.5`, `0.99` or `1`, over the producers' last `metrics.statistics`.",
    "state": "As librdkafka names it.",
    "topic": "A source topic.",
    "partition": "A partition of the source topic.",
    "operator": "A stateful operator: its number in the plan and its name.",
    "observation": "The name given to `df.observe`.",
    "counter": "The name of one of its columns.",
    "gateway": "The gateway's name, which the log and /status have too.",
    "run": "The driver's run.",
    "version": "Tailrace's version.",
}

_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_SLOW: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_PAUSE: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"tailrace_{name}_total", Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"tailrace_{name}", Kind.GAUGE, text, labels)


def _histogram(name: str, buckets: tuple[float, ...], text: str, *labels: str) -> Metric:
    return Metric(f"tailrace_{name}", Kind.HISTOGRAM, text, labels, buckets)


# -- the driver ------------------------------------------------------------------------------------

DRIVER_INFO = _gauge("driver_info", "1; says which run and version this is.", "run", "version")
DRIVER_PHASE = _gauge("driver_phase", "1 for the phase that the driver is in, 0 for the others.", "phase")
DRIVER_STARTED = _gauge("driver_start_timestamp_seconds", "When this driver started, in seconds since 1970.")
READY = _gauge("driver_ready", "1 if the driver runs, or stands by and could take over at once.")
STALLED = _gauge("driver_stalled", "1 if there is lag and no batch was finished for `metrics.stalled`.")

BATCH = _gauge("batch_number", "The batch that was finished last; -1 before the first.")
BATCHES = _counter("batches", "Batches that this driver has finished.")
BATCH_FINISHED = _gauge(
    "batch_finished_timestamp_seconds",
    "When the last batch was finished, in seconds since 1970; absent before the first.",
)
BATCH_SECONDS = _histogram("batch_seconds", _SLOW, "Time of a batch, from the look at the source to its end.")
PHASE_SECONDS = _histogram("batch_phase_seconds", _SLOW, "Time of a part of a batch.", "phase")
BATCH_RECORDS = _gauge("batch_records", "Records that the last batch consumed.")
BATCH_LIMIT = _gauge("batch_limit_records", "Records that the next batch may have: what the rate control has learned.")
BATCH_TARGET = _gauge("batch_target_seconds", "How long a batch may take, as configured; 0 where time does not count.")
SINK_PARTITIONS = _gauge("sink_partitions", "Sink partitions of the last batch.")
INPUT_RATE = _gauge("input_records_per_second", "Records a second that arrived for the last batch; 0 while idle.")
PROCESSED_RATE = _gauge("processed_records_per_second", "Records a second that the last batch has done; 0 while idle.")

CONSUMED_RECORDS = _counter("consumed_records", "Records that were read and decoded, or rejected by that.")
CONSUMED_BYTES = _counter("consumed_bytes", "Bytes of keys and values that were read.")
PRODUCED_RECORDS = _counter("produced_records", "Records that were delivered to the sink topics.")
REJECTED_RECORDS = _counter("rejected_records", "Records that were delivered to the rejected topic.", "reason")
DELIVERED_BYTES = _counter("delivered_bytes", "Bytes of keys and values that were delivered, rejected ones included.")
SKIPPED = _counter("skipped_sink_partitions", "Sink partitions that a marker said were delivered already.")
FRESH = _counter("fresh_producers", "Sink partitions that were written with a producer made for it.")

LAG = _gauge(
    "lag_records",
    "Offsets between what was read and what can be read; 0 when drained, whatever markers of transactions are there.",
    "topic", "partition",
)  # fmt: skip
LAG_SECONDS = _gauge(
    "lag_seconds", "Age of the oldest record that was not read yet; 0 when drained, absent as long as it is not known."
)
LAG_CHECKED = _gauge("lag_checked_timestamp_seconds", "When the lag was asked for last, in seconds since 1970.")
UNSTABLE = _gauge(
    "source_unstable_records",
    "Offsets behind the first open transaction of a source partition: written, and not yet readable with "
    "read_committed.",
    "topic", "partition",
)  # fmt: skip
UNSTABLE_SECONDS = _gauge(
    "source_unstable_seconds",
    "How long an open transaction has kept a source partition from moving, at most; 0 without one.",
)
GAPS = _counter("source_gaps", "Times that records were gone before they were read, and the pipeline went on.")

WATERMARK = _gauge("watermark_timestamp_seconds", "The event time below which records are too late.")
STATE_ROWS = _gauge("state_rows", "Rows of state.", "operator")
STATE_BYTES = _gauge("state_memory_bytes", "Memory of the state store.", "operator")
STATE_DROPPED = _counter("state_dropped_rows", "Rows that came too late for the watermark.", "operator")
OBSERVED = _gauge("observed_last", "A column of `df.observe`, of the last batch.", "observation", "counter")
OBSERVED_SUM = _counter("observed", "A column of `df.observe`, all batches added up.", "observation", "counter")

EXECUTORS_WANTED = _gauge("executors_wanted", "Executors that were asked for.")
EXECUTORS_PRESENT = _gauge("executors_present", "Executors that are there.")
LEDGER_RETENTION = _gauge(
    "ledger_retention_seconds",
    "How long the brokers keep markers (offsets.retention.minutes); absent where they do not tell.",
)
LEDGER_WRITTEN = _gauge("ledger_written_timestamp_seconds", "When markers or plans were committed last; since 1970.")
DRIVER_WARNINGS = _counter("driver_warnings", "Warnings that the driver has reported.")

# -- an executor's gateway --------------------------------------------------------------------------

GATEWAY_INFO = _gauge("gateway_info", "1; says which gateway and version this is.", "gateway", "version")
GATEWAY_STARTED = _gauge("gateway_start_timestamp_seconds", "When this gateway started, in seconds since 1970.")
TASKS = _gauge("gateway_tasks", "Tasks that are streaming to this gateway.")
TASK_SECONDS = _histogram(
    "gateway_task_seconds", _FAST, "Time of a task in the gateway, from its first word to the answer."
)
GATEWAY_RECORDS = _counter(
    "gateway_records", "Records of committed transactions, or acknowledged at-least-once.", "group"
)
GATEWAY_REJECTED = _counter("gateway_rejected_records", "Those that went to the rejected topic.", "group", "reason")
GATEWAY_BYTES = _counter("gateway_bytes", "Bytes of keys and values of both.", "group")

CREATED = _counter("producers_created", "Producers that were made.", "kind")
CLOSED = _counter("producers_closed", "Producers that were closed.", "kind")
OPEN = _gauge("producers_open", "Producers that are there: created minus closed.", "kind")
USED = _gauge("producers_in_use", "Producers that a task is using.", "kind")
RETIRED = _counter("producers_retired", "Producers that are not used again, by reason.", "kind", "reason")

BEGUN = _counter("transactions_begun", "Transactions that were begun.", "group")
COMMITTED = _counter("transactions_committed", "Transactions that were committed, without a doubt.", "group")
ABORTED = _counter("transactions_aborted", "Transactions that ended otherwise before their commit.", "group")
DOUBTFUL = _counter("transactions_doubtful", "Commits whose outcome was not known; the marker then decided.", "group")
ALREADY = _counter("transactions_skipped", "Sink partitions whose marker said that they are delivered.", "group")
TRANSACTION_SECONDS = _histogram(
    "transaction_seconds", _FAST, "Time of a committed transaction, from its begin to the commit's answer.", "group"
)
COMMIT_SECONDS = _histogram("transaction_commit_seconds", _FAST, "Time of the commit alone.", "group")
TRANSACTIONS_OPEN = _gauge("transactions_open", "Transactions that are open now.", "group")
OLDEST_OPEN = _gauge("transaction_oldest_open_seconds", "Age of the oldest open transaction; 0 without one.", "group")
OPEN_SECONDS = _histogram(
    "transaction_open_age_seconds", _FAST, "Ages of the oldest open transaction, looked at twice a second.", "group"
)

QUEUED = _gauge("producer_queue_records", "Records and reports in the producers' queues.")
QUEUED_BYTES = _gauge("producer_queue_bytes", "Bytes in the producers' queues, at the last statistics.")
BATCH_BYTES = _gauge("producer_batch_bytes", "Size of the producers' batches on the wire.", "quantile")
BATCH_SIZE = _gauge("producer_batch_records", "Records in one of them.", "quantile")
IDEMPOTENCE = _gauge("producer_idempotence_producers", "Producers by the state of their idempotence.", "state")
TRANSACTION_STATE = _gauge("producer_transaction_producers", "Producers by the state of their transactions.", "state")
EPOCHS = _counter("producer_epochs", "Producer ids and epochs that were acquired.")

REQUESTS = _counter("broker_requests", "Requests that the producers sent.", "broker")
REQUEST_BYTES = _counter("broker_sent_bytes", "Bytes that the producers sent.", "broker")
RETRIES = _counter("broker_request_retries", "Requests that were sent again.", "broker")
TIMEOUTS = _counter("broker_request_timeouts", "Requests that were not answered in time.", "broker")
REQUEST_ERRORS = _counter("broker_request_errors", "Requests that could not be sent.", "broker")
CONNECTS = _counter("broker_connects", "Connections that the producers made, or tried to make.", "broker")
DISCONNECTS = _counter("broker_disconnects", "Connections that ended.", "broker")
IN_FLIGHT = _gauge("broker_in_flight_requests", "Requests that wait for their answer.", "broker")
LATENCY = _gauge("broker_request_latency_seconds", "From a request to its answer.", "broker", "quantile")
THROTTLE = _gauge("broker_throttle_seconds", "For how long the broker asked to wait.", "broker", "quantile")

# -- both ------------------------------------------------------------------------------------------

RSS = _gauge("process_resident_memory_bytes", "Memory that the process has resident.", "process")
CPU = _counter("process_cpu_seconds", "CPU time of the process.", "process")
PROCESSES = _gauge("processes", "How many there are.", "process")
JVM_PAUSE = _histogram("jvm_gc_pause_seconds", _PAUSE, "Pauses of the JVM's collections.", "process", "collector")
JVM_HEAP = _gauge("jvm_heap_used_bytes", "Heap in use, as the JVM has counted it last.", "process")
JVM_AFTER = _gauge("jvm_heap_after_gc_bytes", "Heap in use after the last collection.", "process")
JVM_HEAP_MAX = _gauge("jvm_heap_max_bytes", "Heap that may be used.", "process")
PYTHON_PAUSE = _histogram("python_gc_pause_seconds", _PAUSE, "Python's collections.", "process", "generation")
PYTHON_COLLECTED = _counter("python_gc_collected_objects", "Objects that they freed.", "process", "generation")
PYTHON_UNCOLLECTABLE = _counter(
    "python_gc_uncollectable_objects", "Objects that they could not.", "process", "generation"
)
SCRAPES = _counter("scrapes", "Times that this endpoint was asked for its metrics.")

BOTH: Final = (
    RSS, CPU, PROCESSES, JVM_PAUSE, JVM_HEAP, JVM_AFTER, JVM_HEAP_MAX, PYTHON_PAUSE, PYTHON_COLLECTED,
    PYTHON_UNCOLLECTABLE, SCRAPES,
)  # fmt: skip
EXECUTOR: Final = (
    GATEWAY_INFO, GATEWAY_STARTED, TASKS, TASK_SECONDS, GATEWAY_RECORDS, GATEWAY_REJECTED, GATEWAY_BYTES,
    CREATED, CLOSED, OPEN, USED, RETIRED,
    BEGUN, COMMITTED, ABORTED, DOUBTFUL, ALREADY, TRANSACTION_SECONDS, COMMIT_SECONDS, TRANSACTIONS_OPEN, OLDEST_OPEN,
    OPEN_SECONDS, QUEUED, QUEUED_BYTES, BATCH_BYTES, BATCH_SIZE, IDEMPOTENCE, TRANSACTION_STATE, EPOCHS,
    REQUESTS, REQUEST_BYTES, RETRIES, TIMEOUTS, REQUEST_ERRORS, CONNECTS, DISCONNECTS, IN_FLIGHT, LATENCY, THROTTLE,
)  # fmt: skip
DRIVER: Final = (
    DRIVER_INFO, DRIVER_PHASE, DRIVER_STARTED, READY, STALLED, BATCH, BATCHES, BATCH_FINISHED, BATCH_SECONDS,
    PHASE_SECONDS, BATCH_RECORDS, BATCH_LIMIT, BATCH_TARGET, SINK_PARTITIONS, INPUT_RATE, PROCESSED_RATE,
    CONSUMED_RECORDS, CONSUMED_BYTES, PRODUCED_RECORDS, REJECTED_RECORDS, DELIVERED_BYTES, SKIPPED, FRESH,
    LAG, LAG_SECONDS, LAG_CHECKED, UNSTABLE, UNSTABLE_SECONDS, GAPS, WATERMARK, STATE_ROWS, STATE_BYTES, STATE_DROPPED,
    OBSERVED, OBSERVED_SUM,
    EXECUTORS_WANTED, EXECUTORS_PRESENT, LEDGER_RETENTION, LEDGER_WRITTEN, DRIVER_WARNINGS,
)  # fmt: skip


def group(partition: int) -> str:
    """The label of the sink partitions that this one is counted with."""
    number = partition // GROUP_WIDTH
    if number >= GROUPS:
        return f"{GROUPS * GROUP_WIDTH}+"
    return f"{number * GROUP_WIDTH}-{(number + 1) * GROUP_WIDTH - 1}"
