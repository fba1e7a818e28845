"""The section `offsets`: where the input offsets are published for other tools, and where a new pipeline begins.

The ledger knows what a pipeline has delivered; the section `offsets` serves everything else. Import it from
tailrace.config.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tailrace.config.kafka_options import STORE_OPTIONS, KafkaOptions, Options, check_options
from tailrace.config.reference import known_or_class, known_or_class_pattern
from tailrace.config.section import Section

NODE = re.compile(r"(/[^/\0]+)+")  # a path in ZooKeeper


class StoreKind(StrEnum):
    """The stores that come with Tailrace."""

    KAFKA = "kafka"
    ZOOKEEPER = "zookeeper"
    FILE = "file"


class Offsets(Section):
    """Where the input offsets are published for other tools, and where a pipeline without a plan begins."""

    store: str = Field(
        default=StoreKind.KAFKA.value,
        json_schema_extra=known_or_class_pattern(StoreKind),
        description="kafka (the group `tailrace.<pipeline>`), zookeeper, file, or a class of your own as "
        "`package.module:Class`. Only the ledger decides what was delivered; a store that disagrees is reported.",
    )
    from_: str | None = Field(
        default=None,
        alias="from",
        min_length=1,
        description="kafka: the consumer group from whose offsets the pipeline begins on its first start, which stores "
        "them; after the first batch, the group is not read.",
    )
    servers: str | None = Field(
        default=None, min_length=1, description="zookeeper: host:port, comma-separated; a chroot may follow."
    )
    path: str | None = Field(
        default=None,
        min_length=1,
        description="zookeeper: the node of a topic's offsets, by default `/tailrace/<pipeline>/offsets/{topic}`; "
        "`{topic}` may be omitted if only one topic is read. file: the path of a JSON document.",
    )
    options: Options = Field(
        default_factory=dict,
        repr=False,  # passwords
        description="zookeeper: connection options: digest.username and digest.password, sasl.*, ssl.*, timeout.ms.",
    )

    @field_validator("store")
    @classmethod
    def _store(cls, store: str) -> str:
        return known_or_class(store, StoreKind)

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions, info: ValidationInfo) -> KafkaOptions:
        if ":" in info.data.get("store", ""):  # a class of the user's checks what it is given
            return options
        check_options(options, STORE_OPTIONS, "offsets.options")
        for scheme in ("digest", "sasl"):
            if (f"{scheme}.username" in options) != (f"{scheme}.password" in options):
                raise ValueError(f"{scheme}.username and {scheme}.password go together")
        if not re.fullmatch(r"[1-9]\d{0,6}", options.get("timeout.ms", "1")):
            raise ValueError("timeout.ms must be a number of milliseconds")
        return options

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.store != StoreKind.KAFKA and self.from_ is not None:
            raise ValueError("`from` names a consumer group, so it goes with store kafka")
        if ":" in self.store:
            return self
        if self.store == StoreKind.KAFKA and self.path is not None:
            raise ValueError("`path` goes with store zookeeper or file")
        if self.store != StoreKind.ZOOKEEPER and (self.servers is not None or self.options):
            raise ValueError("`servers` and `options` go with store zookeeper")
        if self.store == StoreKind.ZOOKEEPER and self.servers is None:
            raise ValueError("store zookeeper needs `servers`")
        if self.store == StoreKind.FILE and self.path is None:
            raise ValueError("store file needs a `path`")
        if self.store == StoreKind.ZOOKEEPER and self.path is not None and not NODE.fullmatch(self.path):
            raise ValueError("the `path` of a node begins with /, does not end with /, and has no empty part")
        return self
