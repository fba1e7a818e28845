"""The one schema of a pipeline: for the YAML file, the environment, Python and the Kubernetes resource.

What is valid here is valid everywhere, so every rule that does not need Kafka, Spark or the user's function is
stated here or, for Kafka options, in `kafka_options`; nothing is checked again later. Importing this module imports
neither Spark nor Kafka.
"""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.config.kafka import Kafka
from tailrace.config.kafka_options import SPARK_KAFKA, SPARK_KAFKA_CONSUMERS, Options
from tailrace.config.offsets import Offsets, StoreKind
from tailrace.config.process import OnError, Process
from tailrace.config.running import Batch, Executors, Ledger, Metrics
from tailrace.config.section import Section
from tailrace.config.sink import Sink
from tailrace.config.source import Source

NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
S3_PLACE = re.compile(r"s3a://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/(?!\.\.?(/|$))[A-Za-z0-9!_.*()=-]+)+/?")


class Pipeline(Section):
    """One pipeline: a source, decode → process → encode, a sink."""

    pipeline: str = Field(
        min_length=1,
        max_length=100,
        description="The pipeline's name: lower-case letters, digits and dashes. Ids and group names derive from it.",
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
        description="`ledger` for a stateless pipeline, which needs no other store; for a stateful one, where its "
        "state is kept: a folder, `file:/…`, or `s3a://bucket/prefix` on S3, MinIO or a compatible store.",
    )
    spark: Options = Field(
        default_factory=dict,
        repr=False,  # keys of object stores
        description="Spark settings (spark.*). Adaptive execution and speculation stay off, whatever is set here.",
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
                raise ValueError(f"{name!r} is not a Spark setting: those begin with `spark.`")
            if name.startswith(SPARK_KAFKA) and not name.startswith(SPARK_KAFKA_CONSUMERS):
                raise ValueError(f"{name!r} would give Kafka's clients unchecked options; use kafka.options")
        return settings

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ours = {self.rejected_topic, self.ledger.topic}
        for topic in self.source.topics:
            if topic in ours:
                raise ValueError(f"the pipeline writes to {topic!r} itself, so it cannot be among the source topics")
            if topic in self.sink.named:
                raise ValueError(f"source and sink are both {topic!r}: the pipeline would read its own output forever")
        if self.ledger.topic in {*self.sink.named, self.rejected_topic}:
            raise ValueError(f"{self.ledger.topic!r} is the ledger; nothing else may be written to it")
        path = self.offsets.path or "{topic}"
        if self.offsets.store == StoreKind.ZOOKEEPER and "{topic}" not in path and len(self.source.topics) != 1:
            raise ValueError("offsets.path must contain {topic}: each of the pipeline's topics needs a node of its own")
        if self.offsets.from_ in {f"tailrace.{self.pipeline}", f"tailrace.{self.pipeline}.markers"}:
            raise ValueError(f"offsets.from must be another job's group; {self.offsets.from_!r} is the pipeline's own")
        if not self.spark.get("spark.master", "").startswith("k8s://"):
            for key in ("max", "file"):
                if getattr(self.executors, key) is not None:
                    raise ValueError(f"executors.{key} needs executors that are pods, but spark.master is not k8s://…")
        if self.process.on_error is OnError.REJECT and self.checkpoint != "ledger":
            raise ValueError(
                "process.on_error: reject needs `checkpoint: ledger`: what a stateful function has already counted "
                "cannot be taken out of its state"
            )
        return self

    @property
    def rejected_topic(self) -> str:
        """Return the topic of rejected records."""
        return self.rejected or f"{self.pipeline}.rejected"
