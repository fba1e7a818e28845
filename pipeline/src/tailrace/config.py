"""The one schema of a pipeline: for the YAML file, the environment, Python and the Kubernetes resource.

What is valid here is valid everywhere, so every rule that does not need Kafka, Spark or the user's function is
stated here or, for Kafka options, in tailrace.options; what passed is not checked again. Importing it imports neither
Spark nor Kafka.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.config_executors import Executors as Executors
from tailrace.config_metrics import Metrics as Metrics
from tailrace.config_offsets import Offsets as Offsets
from tailrace.config_offsets import StoreKind as StoreKind
from tailrace.config_process import Process as Process

# The schema is the one place from which the rest takes its words, so the options are found here too.
from tailrace.options import CONNECTION_OPTIONS as CONNECTION_OPTIONS
from tailrace.options import REGISTRY_OPTIONS as REGISTRY_OPTIONS
from tailrace.options import SECRET_OPTION as SECRET_OPTION
from tailrace.options import SINK_OPTIONS as SINK_OPTIONS
from tailrace.options import SOURCE_OPTIONS as SOURCE_OPTIONS
from tailrace.options import SPARK_KAFKA, SPARK_KAFKA_CONSUMERS, check_options
from tailrace.options import STORE_OPTIONS as STORE_OPTIONS
from tailrace.options import Delivery as Delivery
from tailrace.options import KafkaOptions as KafkaOptions
from tailrace.options import Options as Options
from tailrace.options import OptionsUnknown as OptionsUnknown
from tailrace.options import contradictions as contradictions
from tailrace.options import redact as redact
from tailrace.section import Bytes, Seconds
from tailrace.section import Section as Section

NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
S3_PLACE = re.compile(r"s3a://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[A-Za-z0-9!_.*()=-]+)+/?")
LEDGER_TOPIC = "tailrace.ledger"
LEDGER_PARTITIONS = 64


class Format(StrEnum):
    """How a record's value is written."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


class Reset(StrEnum):
    """Where to begin where nothing is stored, or where what is stored is out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnDataLoss(StrEnum):
    """What to do when the next offset to read is gone."""

    STOP = "stop"
    RESET = "reset"


class Isolation(StrEnum):
    """Whether the source sees the records of open and aborted transactions."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Kafka(Section):
    """The brokers, and how to connect to them."""

    bootstrap_servers: str = Field(
        default="localhost:9092",
        alias="bootstrap.servers",
        min_length=1,
        description="Addresses of one or more brokers: host:port, separated by commas.",
    )
    options: Options = Field(
        default_factory=dict,
        repr=False,  # passwords
        description="Options of the connection, as librdkafka names them: security.protocol, ssl.*, sasl.*.",
    )

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        return check_options(options, CONNECTION_OPTIONS, "kafka.options")


class Registry(Section):
    """A schema registry in Confluent's protocol."""

    url: str = Field(description="The registry's address.")
    options: Options = Field(
        default_factory=dict,
        repr=False,  # passwords
        description="More options of confluent-kafka's registry client.",
    )

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        check_options(options, REGISTRY_OPTIONS, "registry.options")
        if options.get("bearer.auth.credentials.source", "STATIC_TOKEN") != "STATIC_TOKEN":
            raise ValueError("bearer.auth.credentials.source is STATIC_TOKEN; tokens are fetched from nowhere")
        return options


class Source(Section):
    """What is read, and how its bytes become rows."""

    topics: list[str] = Field(default_factory=list, description="The topics to read.")
    pattern: str | None = Field(
        default=None, description="A Java regular expression of topics to read, instead of `topics`."
    )
    format: Format = Field(default=Format.RAW, description="raw, json or avro.")
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="json: a Spark DDL string, a .json file or a pydantic model `file.py:Model`; avro: an .avsc file.",
    )
    registry: Registry | None = Field(
        default=None,
        description="avro: records are in the Confluent wire format, their schemas in this registry.",
    )
    auto_offset_reset: Reset = Field(
        default=Reset.EARLIEST,
        alias="auto.offset.reset",
        description="Where to begin where nothing is stored, or where what is stored is out of range: earliest or "
        "latest.",
    )
    on_data_loss: OnDataLoss = Field(
        default=OnDataLoss.STOP,
        description="When the next offset to read is gone: stop with an error, or reset as auto.offset.reset says and "
        "report the gap.",
    )
    isolation: Isolation = Field(default=Isolation.READ_COMMITTED, description="read_committed or read_uncommitted.")
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Read with at least this many tasks; long ranges are split where there are fewer. By default one "
        "task for a small batch, up to the number of slots for a large one.",
    )
    options: Options = Field(
        default_factory=dict, description="Options of reading, as Kafka's Java consumer names them."
    )

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        return check_options(options, SOURCE_OPTIONS, "source.options")

    @field_validator("pattern")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("name either `topics` or a `pattern`, one of them")
        if self.format is Format.JSON and self.schema_ is None:
            raise ValueError("format json needs a `schema`")
        if self.format is Format.AVRO and self.schema_ is None:
            raise ValueError("format avro needs a `schema`, the one that the function is written for")
        if self.format is Format.RAW and self.schema_ is not None:
            raise ValueError("format raw takes no `schema`")
        if self.registry is not None and self.format is not Format.AVRO:
            raise ValueError("a `registry` goes with format avro")
        return self


class Sink(Section):
    """Where the rows go, and how they become bytes."""

    topic: str | None = Field(
        default=None, description="The topic to write to; without one, the function returns a column `topic`."
    )
    format: Format = Field(default=Format.JSON, description="raw, json or avro.")
    schema_: str | None = Field(default=None, alias="schema", description="avro: an .avsc file.")
    registry: Registry | None = Field(
        default=None, description="avro: write the Confluent wire format, with the schema in this registry."
    )
    delivery: Delivery = Field(default=Delivery.EXACTLY_ONCE, description="exactly-once or at-least-once.")
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=LEDGER_PARTITIONS * 16,
        description="Write with at most this many sink partitions; by default one for a small batch, up to the "
        "number of slots for a large one. With a checkpoint folder it bounds the partitions of new state.",
    )
    idle: float = Field(
        default=300.0,
        ge=1,
        allow_inf_nan=False,
        description="Seconds after which a producer that no task uses is closed; one in use never is.",
    )
    options: Options = Field(default_factory=dict, description="Options of writing, as librdkafka names them.")

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        return check_options(options, SINK_OPTIONS, "sink.options")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.format is Format.AVRO and self.schema_ is None:
            raise ValueError("format avro needs a `schema`")
        if self.format is not Format.AVRO and (self.schema_ is not None or self.registry is not None):
            raise ValueError("`schema` and `registry` go with format avro")
        contradictions(self.options, self.delivery)
        return self


class Batch(Section):
    """How the stream is cut into batches."""

    trigger: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds from the beginning of one batch to that of the next; 0: as soon as the last is done.",
    )
    max_records: int = Field(
        default=200_000,
        ge=1,
        description="At most this many records in one batch, whatever the target.",
    )
    target: Seconds = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a batch may take: seconds, or 500ms, 1s, 2m. How many records that are is learned from "
        "the batches before. 0: `max_records` alone counts.",
    )
    max_bytes: Bytes = Field(
        default=256_000_000,
        ge=1,
        description="A batch takes no more records than make up about so many bytes of keys and values, by the size "
        "of those before: a number, or 500kB, 64MB, 1GiB.",
    )
    drain: float = Field(
        default=120.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that the batch under way may still take after SIGTERM or Ctrl-C; then it is given up, and "
        "the next start finishes it.",
    )


class Ledger(Section):
    """The topic that holds plans and, as its group's offsets, markers."""

    topic: str = Field(
        default=LEDGER_TOPIC, min_length=1, description="The ledger topic; pipelines of a cluster share one."
    )
    partitions: int = Field(
        default=LEDGER_PARTITIONS,
        ge=1,
        description="Its partitions, when Tailrace creates it; at least as many as any pipeline has sink partitions.",
    )
    replication: int = Field(
        default=-1,
        ge=-1,
        description="Its replication factor, when Tailrace creates it; -1 is the broker's default.",
    )
    lease: float = Field(
        default=6.0,
        ge=1,
        le=1800,
        description="Seconds after which a driver that has died without a word counts as gone, and a standby takes "
        "over. The broker allows what is between its group.min.session.timeout.ms (6 s by default) and its "
        "group.max.session.timeout.ms.",
    )


class Pipeline(Section):
    """One pipeline: a source, decode → process → encode, a sink."""

    pipeline: str = Field(
        min_length=1,
        max_length=100,
        description="The pipeline's name: lower-case letters, digits and dashes. Ids and groups derive from it.",
    )
    kafka: Kafka = Field(default_factory=Kafka)
    source: Source
    process: Process = Field(default_factory=Process)
    sink: Sink
    rejected: str | None = Field(
        default=None, description="The topic of rejected records; by default `<pipeline>.rejected`."
    )
    batch: Batch = Field(default_factory=Batch)
    ledger: Ledger = Field(default_factory=Ledger)
    offsets: Offsets = Field(default_factory=Offsets)
    metrics: Metrics = Field(default_factory=Metrics)
    executors: Executors = Field(default_factory=Executors)
    checkpoint: str = Field(
        default="ledger",
        description="`ledger` for a stateless pipeline, which needs no other store; for a stateful one where its state "
        "is kept: a folder, `file:/…`, or `s3a://bucket/prefix` on S3, MinIO and their like.",
    )
    spark: Options = Field(
        default_factory=dict,
        repr=False,  # keys of object stores
        description="Settings of Spark (spark.*).",
    )

    @field_validator("pipeline")
    @classmethod
    def _name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(
                "a pipeline's name has lower-case letters, digits and dashes, and neither begins nor ends with a dash"
            )
        return name

    @field_validator("checkpoint")
    @classmethod
    def _checkpoint(cls, place: str) -> str:
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", place)
        if scheme is not None and scheme[1] not in {"file", "s3a"}:
            hint = "; an S3 bucket is written s3a://bucket/prefix" if scheme[1].lower() in {"s3", "s3n", "s3a"} else ""
            raise ValueError(f"a checkpoint is `ledger`, a folder, file:/… or s3a://…, not {scheme[1]}:{hint}")
        if scheme is not None and scheme[1] == "s3a" and not S3_PLACE.fullmatch(place):
            raise ValueError(
                "a checkpoint on S3 is s3a://bucket/prefix, without credentials in it: the bucket has lower-case "
                "letters, digits, dots and dashes, and the prefix is this pipeline's own"
            )
        return place

    @field_validator("spark")
    @classmethod
    def _spark(cls, settings: dict[str, str]) -> dict[str, str]:
        for name in settings:
            if not name.startswith("spark."):
                raise ValueError(f"{name!r} is not a setting of Spark: those begin with `spark.`")
            if name.startswith(SPARK_KAFKA) and not name.startswith(SPARK_KAFKA_CONSUMERS):
                raise ValueError(f"{name!r} would give Kafka's clients options that are not checked; use kafka.options")
        return settings

    @model_validator(mode="after")
    def _whole(self) -> Self:
        ours = {self.rejected_topic, self.ledger.topic}
        for topic in self.source.topics:
            if topic in ours:
                raise ValueError(f"the pipeline writes to {topic!r} itself, so it cannot be among the source topics")
            if topic == self.sink.topic:
                raise ValueError(f"source and sink are both {topic!r}: the pipeline would read its own output for ever")
        if self.ledger.topic in {self.sink.topic, self.rejected_topic}:
            raise ValueError(f"{self.ledger.topic!r} is the ledger; nothing else may be written to it")
        path = self.offsets.path or "{topic}"
        if self.offsets.store is StoreKind.ZOOKEEPER and "{topic}" not in path and len(self.source.topics) != 1:
            raise ValueError("offsets.path must hold {topic}: the pipeline may read several topics, each has a node")
        if self.offsets.from_ in {f"tailrace.{self.pipeline}", f"tailrace.{self.pipeline}.markers"}:
            raise ValueError(f"offsets.from is another job's group; {self.offsets.from_!r} is the pipeline's own")
        if self.executors.max is not None and not self.spark.get("spark.master", "").startswith("k8s://"):
            raise ValueError("executors.max is for executors that are pods, and spark.master is not k8s://…")
        return self

    @property
    def rejected_topic(self) -> str:
        """The topic of rejected records."""
        return self.rejected or f"{self.pipeline}.rejected"
