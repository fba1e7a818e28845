"""Every error that Tailrace raises, in one place.

An error has four parts: a code, what happened with its values, what was kept safe, and the next
command. `tailrace explain CODE` prints the docstring of the class, so it is written for someone
reading it at three in the morning.

    TailraceError
    ├── ConfigError        exit 2   the configuration, the function or a schema is wrong
    ├── KafkaError         exit 3   Kafka refused a request, or a broker or topic is missing
    ├── DeliveryError      exit 4   continuing could lose or duplicate a record (TR-301, fenced: exit 7)
    ├── RunError           exit 5   the pipeline stopped while it was running
    ├── EnvironmentError_  exit 6   this machine lacks something
    └── VerifyError        exit 1   the proof failed: records are lost or duplicated
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.errors.config import (
    ConfigError,
    ConfigInvalid,
    FunctionInvalid,
    FunctionMissing,
    KeyUnreadable,
    OptionRefused,
    SchemaInvalid,
    SinkColumnsInvalid,
)
from tailrace.errors.delivery import (
    BatchOpen,
    CheckpointMismatch,
    CommitInDoubt,
    Contested,
    CutChanged,
    DeliveryError,
    DriverFenced,
    InputCutOff,
    InputUnread,
    LedgerUnusable,
    MarkerConflict,
    OffsetStoreUnusable,
    PipelineRunning,
    PlanOfAnother,
    ProgressMissing,
    VerdictChanged,
)
from tailrace.errors.kafka import (
    BrokerUnreachable,
    KafkaError,
    KafkaFailed,
    NotAuthenticated,
    NotAuthorized,
    OffsetsOutOfRange,
    RecordTooLarge,
    SourceChanged,
    TopicUnknown,
)
from tailrace.errors.machine import (
    BrokerDidNotStart,
    CertificateExpired,
    ClusterRefused,
    DriverPodUnknown,
    DriverUnreachable,
    EnvironmentError_,
    ExecutorsMissing,
    ExtraMissing,
    GatewayUnavailable,
    JarsMissing,
    JavaMissing,
    PortUnusable,
    SparkDidNotStart,
)
from tailrace.errors.proof import NotComparable, RecordsDiffer, VerifyError
from tailrace.errors.root import TailraceError
from tailrace.errors.run import (
    CheckpointFailed,
    DrainUnfinished,
    FunctionFailed,
    InvariantBroken,
    QueryFailed,
    RuleBroken,
    RunError,
)

__all__ = [
    "BatchOpen",
    "BrokerDidNotStart",
    "BrokerUnreachable",
    "CertificateExpired",
    "CheckpointFailed",
    "CheckpointMismatch",
    "ClusterRefused",
    "CommitInDoubt",
    "ConfigError",
    "ConfigInvalid",
    "Contested",
    "CutChanged",
    "DeliveryError",
    "DrainUnfinished",
    "DriverFenced",
    "DriverPodUnknown",
    "DriverUnreachable",
    "EnvironmentError_",
    "ExecutorsMissing",
    "ExtraMissing",
    "FunctionFailed",
    "FunctionInvalid",
    "FunctionMissing",
    "GatewayUnavailable",
    "InputCutOff",
    "InputUnread",
    "InvariantBroken",
    "JarsMissing",
    "JavaMissing",
    "KafkaError",
    "KafkaFailed",
    "KeyUnreadable",
    "LedgerUnusable",
    "MarkerConflict",
    "NotAuthenticated",
    "NotAuthorized",
    "NotComparable",
    "OffsetStoreUnusable",
    "OffsetsOutOfRange",
    "OptionRefused",
    "PipelineRunning",
    "PlanOfAnother",
    "PortUnusable",
    "ProgressMissing",
    "QueryFailed",
    "RecordTooLarge",
    "RecordsDiffer",
    "RuleBroken",
    "RunError",
    "SchemaInvalid",
    "SinkColumnsInvalid",
    "SourceChanged",
    "SparkDidNotStart",
    "TailraceError",
    "TopicUnknown",
    "VerdictChanged",
    "VerifyError",
    "all_errors",
]


def all_errors() -> list[type[TailraceError]]:
    """Return every error class that has a code, sorted by code."""

    def walk(kind: type[TailraceError]) -> Iterator[type[TailraceError]]:
        for sub in kind.__subclasses__():
            if sub.code:
                yield sub
            yield from walk(sub)

    return sorted(walk(TailraceError), key=lambda kind: kind.code)
