"""The section `sink`: where rows go, how they are encoded, and the delivery guarantee."""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.config.kafka import Registry
from tailrace.config.kafka_options import SINK_OPTIONS, Delivery, KafkaOptions, Options, check_options, contradictions
from tailrace.config.reference import known_or_class, known_or_class_pattern
from tailrace.config.running import LEDGER_PARTITIONS
from tailrace.config.section import Section
from tailrace.config.source import Format


class Sink(Section):
    """Where the rows go, and how they are encoded."""

    topic: str | None = Field(
        default=None, description="The topic to write to; without one, the function must return a column `topic`."
    )
    topics: list[str] = Field(
        default_factory=list,
        description="The topics that a column `topic` may name besides `topic`; a row that names another is rejected. "
        "Without them, any that exists may be named.",
    )
    format: str = Field(
        default=Format.JSON.value,
        json_schema_extra=known_or_class_pattern(Format),
        description="raw, json, avro, or a class of your own as `package.module:Class`.",
    )
    schema_: str | None = Field(
        default=None, alias="schema", description="avro: an .avsc file; a class of your own: what it expects."
    )
    registry: Registry | None = Field(
        default=None, description="avro: write the Confluent wire format and register the schema in this registry."
    )
    delivery: Delivery = Field(default=Delivery.EXACTLY_ONCE, description="exactly-once or at-least-once.")
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=LEDGER_PARTITIONS * 16,
        description="Maximum number of sink partitions; by default one for a small batch, up to the number of slots "
        "for a large one. With a checkpoint folder it limits the partitions of new state.",
    )
    idle: float = Field(
        default=300.0,
        ge=1,
        allow_inf_nan=False,
        description="Seconds after which an unused producer is closed; a producer in use is never closed.",
    )
    options: Options = Field(default_factory=dict, description="Producer options, as librdkafka names them.")

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that the configuration names."""
        return tuple(dict.fromkeys([*([self.topic] if self.topic is not None else []), *self.topics]))

    @property
    def allowed(self) -> tuple[str, ...]:
        """The topics that rows may name; empty if they may name any."""
        return self.named if self.topics else ()

    @field_validator("format")
    @classmethod
    def _format(cls, name: str) -> str:
        return known_or_class(name, Format)

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        return check_options(options, SINK_OPTIONS, "sink.options")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.format == Format.AVRO and self.schema_ is None:
            raise ValueError("format avro needs a `schema`")
        if self.format in (Format.RAW, Format.JSON) and (self.schema_ is not None or self.registry is not None):
            raise ValueError("`schema` and `registry` go with format avro")
        contradictions(self.options, self.delivery)
        return self
