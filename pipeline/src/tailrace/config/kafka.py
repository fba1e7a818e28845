"""The sections `kafka` and `registry`: how to connect to the brokers and a schema registry."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from tailrace.config.kafka_options import (
    CONNECTION_OPTIONS,
    REGISTRY_OPTIONS,
    KafkaOptions,
    Options,
    check_connection,
    check_options,
)
from tailrace.config.section import Seconds, Section

# An IPv6 address is in brackets; a listener's protocol may stand in front.
_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/,@\[\]]+):\d{1,5}")


class Kafka(Section):
    """The brokers, and how to connect to them."""

    bootstrap_servers: str = Field(
        default="localhost:9092",
        alias="bootstrap.servers",
        min_length=1,
        description="Addresses of one or more brokers: host:port, comma-separated.",
    )
    options: Options = Field(
        default_factory=dict,
        repr=False,  # passwords
        description="Connection options, as librdkafka names them: security.protocol, ssl.*, sasl.*.",
    )
    patience: Seconds = Field(
        default=600.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a running driver waits for brokers that do not answer, before it ends: seconds, or 30s, "
        "10m. At the start it does not wait.",
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, servers: str) -> str:
        for each in servers.split(","):
            if not _ADDRESS.fullmatch(each.strip()):
                raise ValueError(f"{each.strip()!r} is not host:port; the port of a broker is often 9092")
        return servers

    @field_validator("options")
    @classmethod
    def _options(cls, options: KafkaOptions) -> KafkaOptions:
        check_options(options, CONNECTION_OPTIONS, "kafka.options")
        check_connection(options)
        return options


class Registry(Section):
    """A schema registry that speaks Confluent's protocol."""

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
            raise ValueError("bearer.auth.credentials.source must be STATIC_TOKEN; Tailrace does not fetch tokens")
        return options
