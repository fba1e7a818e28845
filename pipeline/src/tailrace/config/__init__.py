"""The configuration: one schema for the YAML file, the environment, Python and the Kubernetes resource.

Importing this package imports neither Spark nor Kafka. `file` reads the file and the environment.
"""

from tailrace.config.kafka import Kafka, Registry
from tailrace.config.kafka_options import (
    CONNECTION_OPTIONS,
    REGISTRY_OPTIONS,
    SECRET_OPTION,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    STORE_OPTIONS,
    TRANSACTION_TIMEOUT_MS,
    Delivery,
    KafkaOptions,
    Options,
    OptionsUnknown,
    contradictions,
    redact,
    unfit_for_transactions,
)
from tailrace.config.offsets import Offsets, StoreKind
from tailrace.config.process import OnError, Process
from tailrace.config.rules import Rule, Severity
from tailrace.config.running import LEDGER_PARTITIONS, LEDGER_TOPIC, Batch, Executors, Ledger, Metrics
from tailrace.config.schema import Pipeline
from tailrace.config.section import Section
from tailrace.config.sink import Sink
from tailrace.config.source import ISOLATION, Format, Isolation, OnDataLoss, Reset, Source

__all__ = [
    "CONNECTION_OPTIONS",
    "ISOLATION",
    "LEDGER_PARTITIONS",
    "LEDGER_TOPIC",
    "REGISTRY_OPTIONS",
    "SECRET_OPTION",
    "SINK_OPTIONS",
    "SOURCE_OPTIONS",
    "STORE_OPTIONS",
    "TRANSACTION_TIMEOUT_MS",
    "Batch",
    "Delivery",
    "Executors",
    "Format",
    "Isolation",
    "Kafka",
    "KafkaOptions",
    "Ledger",
    "Metrics",
    "Offsets",
    "OnDataLoss",
    "OnError",
    "Options",
    "OptionsUnknown",
    "Pipeline",
    "Process",
    "Registry",
    "Reset",
    "Rule",
    "Section",
    "Severity",
    "Sink",
    "Source",
    "StoreKind",
    "contradictions",
    "redact",
    "unfit_for_transactions",
]
