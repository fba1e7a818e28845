"""The section `sink`: where rows go, how they become bytes, and how often each is delivered."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.config.kafka import Registry
from tailrace.config.kafka_options import SINK_OPTIONS, Delivery, KafkaOptions, Options, check_options, contradictions
from tailrace.config.running import LEDGER_PARTITIONS
from tailrace.config.section import Section
from tailrace.config.source import Format


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
