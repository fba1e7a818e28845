"""The section `source`: which topics are read, from where, and the format of a record's value."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from tailrace.config.kafka import Registry
from tailrace.config.kafka_options import SOURCE_OPTIONS, KafkaOptions, Options, check_options
from tailrace.config.reference import known_or_class, known_or_class_pattern
from tailrace.config.section import Section


class Format(StrEnum):
    """How a record's value is encoded: the formats that come with Tailrace."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


class Reset(StrEnum):
    """Where to begin if no offset is stored, or the stored one is out of range."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnDataLoss(StrEnum):
    """What to do if the next offset to read is gone."""

    STOP = "stop"
    RESET = "reset"


ISOLATION = "source.isolation"  # the setting's name among those that a plan notes


class Isolation(StrEnum):
    """Whether the source sees the records of open and aborted transactions."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Source(Section):
    """What is read, and how it is decoded."""

    topics: list[str] = Field(default_factory=list, description="The topics to read.")
    pattern: str | None = Field(
        default=None, description="A Java regular expression that matches the topics to read, instead of `topics`."
    )
    format: str = Field(
        default=Format.RAW.value,
        json_schema_extra=known_or_class_pattern(Format),
        description="raw, json, avro, or a class of your own as `package.module:Class`.",
    )
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="json: a Spark DDL string, a .json file or a pydantic model `file.py:Model`; avro: an .avsc file; "
        "a class of your own: what it expects.",
    )
    registry: Registry | None = Field(
        default=None,
        description="avro: records are in the Confluent wire format, with their schemas in this registry.",
    )
    auto_offset_reset: Reset = Field(
        default=Reset.EARLIEST,
        alias="auto.offset.reset",
        description="Where a new pipeline begins if no offset is stored, and where to continue if the stored one is "
        "out of range: earliest or latest. Topics and partitions that are added later are read from their beginning.",
    )
    on_data_loss: OnDataLoss = Field(
        default=OnDataLoss.STOP,
        description="If the next offset to read is gone: stop with an error, or reset as auto.offset.reset says and "
        "report the gap.",
    )
    isolation: Isolation = Field(default=Isolation.READ_COMMITTED, description="read_committed or read_uncommitted.")
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Minimum number of tasks that read; long ranges are split to reach it. By default one task for a "
        "small batch, up to the number of slots for a large one.",
    )
    options: Options = Field(default_factory=dict, description="Consumer options, as Kafka's Java consumer names them.")

    @field_validator("format")
    @classmethod
    def _format(cls, name: str) -> str:
        return known_or_class(name, Format)

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
    def _consistent(self) -> Self:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("set either `topics` or `pattern`, and not both")
        if self.format == Format.JSON and self.schema_ is None:
            raise ValueError("format json needs a `schema`")
        if self.format == Format.AVRO and self.schema_ is None:
            raise ValueError("format avro needs a `schema`, the one that the function is written for")
        if self.format == Format.RAW and self.schema_ is not None:
            raise ValueError("format raw takes no `schema`")
        if self.registry is not None and self.format in (Format.RAW, Format.JSON):
            raise ValueError("a `registry` goes with format avro")
        return self
