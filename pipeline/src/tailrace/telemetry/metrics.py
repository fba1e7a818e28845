"""Every metric, declared once: its name, unit, labels and help text; and the names of Spark observations.

The exported metrics (`telemetry`) and docs/metrics.md are generated from these declarations. The number of series is
bounded by the configuration: pipelines, topic partitions, groups of sink partitions, brokers, reasons; never by
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
SIZE: Final = "size"  # bytes consumed, keys and values
PRODUCED: Final = "produced"
REJECTED: Final = "rejected"


class Kind(StrEnum):
    """The metric's type in Prometheus."""

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


GROUP_WIDTH: Final = 16  # sink partitions per value of the label `group`
GROUPS: Final = 8  # groups of that width; one more holds all sink partitions beyond
PIPELINES: Final = 16  # pipelines of one gateway with series of their own; any other is `other`
REASONS: Final = 64  # rejection reasons with series of their own; any other is `other`
OTHER: Final = "other"

# Why a producer is retired: the part of the cache's reason before the colon.
RETIREMENTS: Final = (
    "idle", "exit", "failed", "earlier run", "moved", "another attempt", "not delivered", "fatal", "connection",
    "slow commit", "state", "repeated",
)  # fmt: skip

LABELS: Final = {
    "pipeline": "The pipeline's name; for `format(\"tailrace\")` the query's id.",
    "group": f"Sink partitions in groups of {GROUP_WIDTH}: `0-15`, `16-31`, … and `{GROUP_WIDTH * GROUPS}+`.",
    "kind": "Of producers: `sink` (transactional, for one sink partition), `shared` (at-least-once), `reader` (reads "
    "markers, writes nothing).",
    "reason": "Of producers: "
    + ", ".join(f"`{each}`" for each in RETIREMENTS)
    + ". Of records: why they were rejected, "
    "as in the header `tailrace.reason`.",
    "phase": "Of a batch: `look`, `choose`, `rules` (counting for a rule with `severity: stop`), `ledger` (the plan's "
    "transaction), `deliver`; in a stateful pipeline Spark's own names (`latestOffset`, `queryPlanning`, `walCommit`, "
    "`addBatch`, `commitOffsets`), and Tailrace's parts of `addBatch`: `cut`, `rules`, `ledger`, `deliver`, `after`. "
    "Of a driver: `starting`, `standby`, `leading`, `stopping`.",
    "process": "`driver` and `driver-jvm`; `gateway`, `executor-jvm` and `workers` (the Python workers of an executor, "
    "together).",
    "collector": "The JVM's own name for the garbage collector.",
    "generation": "The generation of Python's collector: 0, 1 or 2.",
    "broker": "The broker's id; `coordinator`: transaction requests; `bootstrap`: the first connection.",
    "rule": "The name of a rule of `process.validate`.",
    "severity": "What happens to a record that breaks the rule: `reject`, `warn` or `stop`.",
    "quantile": "`0.5`, `0.99` or `1`, over the producers' last `metrics.statistics` interval.",
    "state": "The state, as librdkafka names it.",
    "topic": "A source topic.",
    "partition": "A partition of the source topic.",
    "operator": "A stateful operator: its number in the plan and its name.",
    "observation": "The name given to `df.observe`.",
    "counter": "The name of one of the observation's columns.",
    "gateway": "The gateway's name, as in the log and /status.",
    "run": "The id of the driver's run.",
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

DRIVER_INFO = _gauge("driver_info", "Always 1; its labels are the driver's run and version.", "run", "version")
DRIVER_PHASE = _gauge("driver_phase", "1 for the phase that the driver is in, 0 for the others.", "phase")
DRIVER_STARTED = _gauge("driver_start_timestamp_seconds", "When this driver started, in seconds since 1970.")
READY = _gauge("driver_ready", "1 if the driver is running, or is a standby that could take over at once.")
STALLED = _gauge("driver_stalled", "1 if there is lag and no batch has finished for `metrics.stalled`.")
BROKERS_AWAY = _gauge("driver_brokers_away", "1 while no broker answers the driver, which waits for them.")

BATCH = _gauge("batch_number", "The last finished batch; -1 before the first.")
BATCHES = _counter("batches", "Batches that this driver has finished.")
BATCH_FINISHED = _gauge(
    "batch_finished_timestamp_seconds",
    "When the last batch finished, in seconds since 1970; absent before the first.",
)
BATCH_SECONDS = _histogram("batch_seconds", _SLOW, "Duration of a batch, from looking at the source to its end.")
PHASE_SECONDS = _histogram("batch_phase_seconds", _SLOW, "Duration of one phase of a batch.", "phase")
BATCH_RECORDS = _gauge("batch_records", "Records that the last batch consumed.")
BATCH_LIMIT = _gauge("batch_limit_records", "Records that the next batch may have, as learned by the rate control.")
BATCH_TARGET = _gauge("batch_target_seconds", "How long a batch should take (`batch.target`); 0 without a target.")
SINK_PARTITIONS = _gauge("sink_partitions", "Sink partitions of the last batch.")
INPUT_RATE = _gauge("input_records_per_second", "Records per second that arrived for the last batch; 0 while idle.")
PROCESSED_RATE = _gauge("processed_records_per_second", "Records per second that the last batch processed; 0 if idle.")

CONSUMED_RECORDS = _counter("consumed_records", "Records read from the source, including those rejected in decoding.")
CONSUMED_BYTES = _counter("consumed_bytes", "Bytes of keys and values read from the source.")
PRODUCED_RECORDS = _counter("produced_records", "Records delivered to the sink topics.")
REJECTED_RECORDS = _counter("rejected_records", "Records delivered to the rejected topic.", "reason")
RULE_CHECKED = _counter(
    "rule_checked_records", "Records of delivered batches that a rule has checked.", "rule", "severity"
)
RULE_BROKEN = _counter("rule_broken_records", "Records of delivered batches that broke a rule.", "rule", "severity")
DELIVERED_BYTES = _counter("delivered_bytes", "Bytes of keys and values delivered, including rejected records.")
SKIPPED = _counter("skipped_sink_partitions", "Sink partitions skipped because a marker said they were delivered.")
FRESH = _counter("fresh_producers", "Sink partitions written with a newly created producer.")

LAG = _gauge(
    "lag_records",
    "Offsets that can be read but have not been; 0 when caught up, even if transaction markers follow.",
    "topic", "partition",
)  # fmt: skip
LAG_SECONDS = _gauge("lag_seconds", "Age of the oldest record not read yet; 0 when caught up, absent while unknown.")
LAG_CHECKED = _gauge("lag_checked_timestamp_seconds", "When the lag was last measured, in seconds since 1970.")
UNSTABLE = _gauge(
    "source_unstable_records",
    "Offsets after the start of a source partition's first open transaction: written, but not yet readable with "
    "read_committed.",
    "topic", "partition",
)  # fmt: skip
UNSTABLE_SECONDS = _gauge(
    "source_unstable_seconds",
    "Longest time that an open transaction has blocked a source partition; 0 without one.",
)
GAPS = _counter("source_gaps", "Times that records were gone before they were read and the pipeline continued.")

WATERMARK = _gauge("watermark_timestamp_seconds", "The event time below which records are too late.")
STATE_ROWS = _gauge("state_rows", "Rows of state.", "operator")
STATE_BYTES = _gauge("state_memory_bytes", "Memory of the state store.", "operator")
STATE_DROPPED = _counter("state_dropped_rows", "Rows dropped because they were later than the watermark.", "operator")
OBSERVED = _gauge("observed_last", "A column of `df.observe` in the last batch.", "observation", "counter")
OBSERVED_SUM = _counter("observed", "A column of `df.observe`, summed over all batches.", "observation", "counter")

EXECUTORS_WANTED = _gauge("executors_wanted", "Executors requested.")
EXECUTORS_PRESENT = _gauge("executors_present", "Executors registered.")
LEDGER_RETENTION = _gauge(
    "ledger_retention_seconds",
    "How long the brokers keep markers (offsets.retention.minutes); absent if the brokers do not report it.",
)
LEDGER_WRITTEN = _gauge(
    "ledger_written_timestamp_seconds", "When markers or plans were last committed, in seconds since 1970."
)
DRIVER_WARNINGS = _counter("driver_warnings", "Warnings that the driver has reported.")

# -- an executor's gateway --------------------------------------------------------------------------

GATEWAY_INFO = _gauge("gateway_info", "Always 1; its labels are the gateway's name and version.", "gateway", "version")
GATEWAY_STARTED = _gauge("gateway_start_timestamp_seconds", "When this gateway started, in seconds since 1970.")
TASKS = _gauge("gateway_tasks", "Tasks that are streaming to this gateway.")
TASK_SECONDS = _histogram(
    "gateway_task_seconds", _FAST, "Duration of a task in the gateway, from its first message to the answer."
)
GATEWAY_RECORDS = _counter(
    "gateway_records", "Records in committed transactions, or acknowledged in at-least-once delivery.", "group"
)
GATEWAY_REJECTED = _counter(
    "gateway_rejected_records", "Records written to the rejected topic, counted like `gateway_records`.", "group",
    "reason",
)  # fmt: skip
GATEWAY_BYTES = _counter("gateway_bytes", "Bytes of keys and values, of output and rejected records.", "group")

CREATED = _counter("producers_created", "Producers created.", "kind")
CLOSED = _counter("producers_closed", "Producers closed.", "kind")
OPEN = _gauge("producers_open", "Open producers: created minus closed.", "kind")
USED = _gauge("producers_in_use", "Producers in use by a task.", "kind")
RETIRED = _counter("producers_retired", "Producers that will not be used again, by reason.", "kind", "reason")

BEGUN = _counter("transactions_begun", "Transactions begun.", "group")
COMMITTED = _counter("transactions_committed", "Transactions known to be committed.", "group")
ABORTED = _counter("transactions_aborted", "Transactions that ended before their commit.", "group")
DOUBTFUL = _counter("transactions_doubtful", "Commits with an unknown outcome, then settled by the marker.", "group")
ALREADY = _counter("transactions_skipped", "Sink partitions skipped because their marker says delivered.", "group")
TRANSACTION_SECONDS = _histogram(
    "transaction_seconds", _FAST, "Duration of a committed transaction, from begin to the commit's answer.", "group"
)
COMMIT_SECONDS = _histogram("transaction_commit_seconds", _FAST, "Duration of the commit alone.", "group")
TRANSACTIONS_OPEN = _gauge("transactions_open", "Transactions open now.", "group")
OLDEST_OPEN = _gauge("transaction_oldest_open_seconds", "Age of the oldest open transaction; 0 without one.", "group")
OPEN_SECONDS = _histogram(
    "transaction_open_age_seconds", _FAST, "Age of the oldest open transaction, sampled twice a second.", "group"
)

QUEUED = _gauge("producer_queue_records", "Records and delivery reports in the producers' queues.")
QUEUED_BYTES = _gauge("producer_queue_bytes", "Bytes in the producers' queues, as of the last statistics.")
BATCH_BYTES = _gauge("producer_batch_bytes", "Size of the producers' batches on the wire.", "quantile")
BATCH_SIZE = _gauge("producer_batch_records", "Records per batch on the wire.", "quantile")
IDEMPOTENCE = _gauge("producer_idempotence_producers", "Producers by idempotence state.", "state")
TRANSACTION_STATE = _gauge("producer_transaction_producers", "Producers by transaction state.", "state")
EPOCHS = _counter("producer_epochs", "Producer ids and epochs acquired.")

REQUESTS = _counter("broker_requests", "Requests that the producers sent.", "broker")
REQUEST_BYTES = _counter("broker_sent_bytes", "Bytes that the producers sent.", "broker")
RETRIES = _counter("broker_request_retries", "Requests that were retried.", "broker")
TIMEOUTS = _counter("broker_request_timeouts", "Requests that timed out.", "broker")
REQUEST_ERRORS = _counter("broker_request_errors", "Requests that could not be sent.", "broker")
CONNECTS = _counter("broker_connects", "Connections that the producers made, or tried to make.", "broker")
DISCONNECTS = _counter("broker_disconnects", "Connections that ended.", "broker")
IN_FLIGHT = _gauge("broker_in_flight_requests", "In-flight requests.", "broker")
LATENCY = _gauge("broker_request_latency_seconds", "Time from a request to its answer.", "broker", "quantile")
THROTTLE = _gauge("broker_throttle_seconds", "Throttle time that the broker asked for.", "broker", "quantile")

# -- both ------------------------------------------------------------------------------------------

RSS = _gauge("process_resident_memory_bytes", "Resident memory of the process.", "process")
CPU = _counter("process_cpu_seconds", "CPU time of the process.", "process")
PROCESSES = _gauge("processes", "Number of such processes.", "process")
JVM_PAUSE = _histogram("jvm_gc_pause_seconds", _PAUSE, "Garbage collection pauses of the JVM.", "process", "collector")
JVM_HEAP = _gauge("jvm_heap_used_bytes", "Heap in use, as last counted by the JVM.", "process")
JVM_AFTER = _gauge("jvm_heap_after_gc_bytes", "Heap in use after the last garbage collection.", "process")
JVM_HEAP_MAX = _gauge("jvm_heap_max_bytes", "Maximum heap size.", "process")
PYTHON_PAUSE = _histogram(
    "python_gc_pause_seconds", _PAUSE, "Garbage collection pauses of Python.", "process", "generation"
)
PYTHON_COLLECTED = _counter(
    "python_gc_collected_objects", "Objects freed by Python's garbage collector.", "process", "generation"
)
PYTHON_UNCOLLECTABLE = _counter(
    "python_gc_uncollectable_objects", "Objects that Python's garbage collector could not free.", "process",
    "generation",
)  # fmt: skip
SCRAPES = _counter("scrapes", "Scrapes of this endpoint.")

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
    DRIVER_INFO, DRIVER_PHASE, DRIVER_STARTED, READY, STALLED, BROKERS_AWAY,
    BATCH, BATCHES, BATCH_FINISHED, BATCH_SECONDS, PHASE_SECONDS, BATCH_RECORDS, BATCH_LIMIT, BATCH_TARGET,
    SINK_PARTITIONS, INPUT_RATE, PROCESSED_RATE,
    CONSUMED_RECORDS, CONSUMED_BYTES, PRODUCED_RECORDS, REJECTED_RECORDS, RULE_CHECKED, RULE_BROKEN, DELIVERED_BYTES,
    SKIPPED, FRESH,
    LAG, LAG_SECONDS, LAG_CHECKED, UNSTABLE, UNSTABLE_SECONDS, GAPS, WATERMARK, STATE_ROWS, STATE_BYTES, STATE_DROPPED,
    OBSERVED, OBSERVED_SUM,
    EXECUTORS_WANTED, EXECUTORS_PRESENT, LEDGER_RETENTION, LEDGER_WRITTEN, DRIVER_WARNINGS,
)  # fmt: skip


def group(partition: int) -> str:
    """Return the label of the group that this sink partition is counted in."""
    number = partition // GROUP_WIDTH
    if number >= GROUPS:
        return f"{GROUPS * GROUP_WIDTH}+"
    return f"{number * GROUP_WIDTH}-{(number + 1) * GROUP_WIDTH - 1}"
