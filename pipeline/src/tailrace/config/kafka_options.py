"""The Kafka options that Tailrace passes on, as allow lists.

Tailrace passes on options for throughput and for the connection. An option that it does not know could break the
delivery guarantee, so these lists say what is allowed rather than what is forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator

KafkaOptions = dict[str, str]


def _as_text(value: object) -> object:
    """Turn booleans and numbers into text: YAML reads `true` and `5242880` where Kafka wants text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


OptionText = Annotated[str, BeforeValidator(_as_text)]
Options = dict[str, OptionText]


# Connection options, for every client.
CONNECTION_OPTIONS = frozenset({
    "client.dns.lookup", "connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "request.timeout.ms", "sasl.mechanism", "sasl.password", "sasl.username",
    "security.protocol", "socket.connection.setup.timeout.ms", "socket.keepalive.enable",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm", "ssl.key.location", "ssl.key.password", "ssl.key.pem",
})  # fmt: skip
# Consumer options, as named by Kafka's Java consumer, which Spark's source uses.
SOURCE_OPTIONS = frozenset({
    "check.crcs", "client.rack", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes",
    "max.partition.fetch.bytes", "max.poll.records", "receive.buffer.bytes", "request.timeout.ms",
    "default.api.timeout.ms",
})  # fmt: skip
# Producer options, as librdkafka names them.
SINK_OPTIONS = frozenset({
    "acks", "batch.num.messages", "batch.size", "compression.level", "compression.type", "delivery.timeout.ms",
    "enable.idempotence", "linger.ms", "max.in.flight.requests.per.connection", "message.max.bytes",
    "message.timeout.ms", "partitioner", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "queue.buffering.max.ms", "request.timeout.ms", "retries", "retry.backoff.ms", "retry.backoff.max.ms",
    "socket.send.buffer.bytes", "sticky.partitioning.linger.ms", "transaction.timeout.ms",
})  # fmt: skip
# Options for connecting to a ZooKeeper that stores offsets.
STORE_OPTIONS = frozenset({
    "digest.password", "digest.username", "sasl.mechanism", "sasl.password", "sasl.username",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "timeout.ms",
})  # fmt: skip
# Options of confluent-kafka's registry client. Only certificates may be read from files, and no option may fetch a
# token from another address or from code.
REGISTRY_OPTIONS = frozenset({
    "basic.auth.user.info", "bearer.auth.credentials.source", "bearer.auth.identity.pool.id",
    "bearer.auth.logical.cluster", "bearer.auth.token", "cache.capacity", "cache.latest.ttl.sec", "max.retries",
    "retries.max.wait.ms", "retries.wait.ms", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password", "timeout",
})  # fmt: skip
# Spark settings through which its Kafka connector takes client options, bypassing the lists above.
SPARK_KAFKA = "spark.kafka."
SPARK_KAFKA_CONSUMERS = "spark.kafka.consumer."  # only the number of cached consumers and for how long
SECRET_OPTION = re.compile(
    r"password|secret|\.key\.pem|\.certificate\.pem|keystore\.key|jaas|token|user\.info", re.IGNORECASE
)


TRANSACTION_TIMEOUT_MS = 120_000  # unless the options say otherwise

_IN_FLIGHT, _MOST_IN_FLIGHT = "max.in.flight.requests.per.connection", 5

SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Delivery(StrEnum):
    """The delivery guarantee."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class OptionsUnknown(ValueError):
    """Raised for Kafka options that are not on their list."""

    def __init__(self, what: str, names: list[str], allowed: frozenset[str]) -> None:
        self.names = names
        self.allowed = allowed
        unknown = ", ".join(repr(name) for name in names)
        super().__init__(f"{what} does not take the Kafka option {unknown}; it takes {', '.join(sorted(allowed))}")


def check_options(options: KafkaOptions, allowed: frozenset[str], what: str) -> KafkaOptions:
    """Return the options unchanged, or raise OptionsUnknown for those that are not on the list."""
    unknown = [name for name in options if name not in allowed]
    if unknown:
        raise OptionsUnknown(what, unknown, allowed)
    return options


def check_connection(options: KafkaOptions) -> None:
    """Raise ValueError for a way to authenticate that the clients do not have.

    librdkafka accepts OAUTHBEARER without a token, and then reports no more than that no broker answers. Its default
    mechanism is GSSAPI, with which the wheels of confluent-kafka are not built.
    """
    protocol = options.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in SECURITY_PROTOCOLS:
        raise ValueError(f"security.protocol must be {_or(SECURITY_PROTOCOLS)}")
    mechanism = options.get("sasl.mechanism")
    if mechanism is not None and mechanism not in SASL_MECHANISMS:
        raise ValueError(
            f"sasl.mechanism must be {_or(SASL_MECHANISMS)}; OAUTHBEARER, GSSAPI and AWS_MSK_IAM are not supported, "
            "and a client certificate needs no mechanism, with security.protocol SSL"
        )


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def contradictions(options: KafkaOptions, delivery: Delivery) -> None:
    """Raise ValueError if an option contradicts the delivery guarantee."""
    acks = options.get("acks")
    if acks is not None and acks not in {"all", "-1", "1", "0"}:
        raise ValueError(f"acks must be all, 1 or 0, not {acks!r}")
    if delivery is Delivery.EXACTLY_ONCE and acks not in {None, "all", "-1"}:
        raise ValueError(
            f"acks={acks} contradicts delivery exactly-once, which needs acks=all; "
            "leave it out, or choose at-least-once"
        )
    if delivery is Delivery.AT_LEAST_ONCE and acks == "0":
        raise ValueError("acks=0 contradicts delivery at-least-once: an unacknowledged record may be lost")
    idempotence = options.get("enable.idempotence")
    if delivery is Delivery.EXACTLY_ONCE and idempotence not in {None, "true"}:
        raise ValueError("enable.idempotence=false contradicts delivery exactly-once")
    if idempotence == "true" and acks == "1":
        raise ValueError("enable.idempotence=true needs acks=all")
    if delivery is Delivery.AT_LEAST_ONCE and "transaction.timeout.ms" in options:
        raise ValueError("transaction.timeout.ms goes with delivery exactly-once")
    if delivery is Delivery.EXACTLY_ONCE:
        for name, need in unfit_for_transactions(options).items():
            raise ValueError(f"{name}={options[name]} contradicts delivery exactly-once, which needs {need}")
    elif acks != "1" and idempotence in {None, "true"}:
        for name, need in unfit_for_idempotence(options).items():
            raise ValueError(f"{name}={options[name]} needs enable.idempotence=false; with true it is {need}")


def unfit_for_transactions(options: KafkaOptions) -> dict[str, str]:
    """Return the options that librdkafka's transactional producer refuses when it is made, each with what it needs."""
    found = unfit_for_idempotence(options)
    if options.get("enable.idempotence") not in {None, "true"}:
        found["enable.idempotence"] = "true"
    limit = _number(options, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    for name in ("delivery.timeout.ms", "message.timeout.ms"):  # two names of one option
        if _number(options, name, 0) > limit:
            found[name] = f"at most {limit}, the value of transaction.timeout.ms"
    return found


def unfit_for_idempotence(options: KafkaOptions) -> dict[str, str]:
    """Return the options that librdkafka's idempotent producer refuses when it is made, each with what it needs."""
    found = {}
    if options.get("acks") not in {None, "all", "-1"}:
        found["acks"] = "all"
    if _number(options, "retries", 1) < 1:
        found["retries"] = "at least 1"
    if _number(options, _IN_FLIGHT, 1) > _MOST_IN_FLIGHT:
        found[_IN_FLIGHT] = f"at most {_MOST_IN_FLIGHT}"
    return found


def _number(options: KafkaOptions, name: str, default: int) -> int:
    try:
        return int(options.get(name, default))
    except ValueError:  # librdkafka refuses it by itself
        return default


def redact(options: KafkaOptions) -> KafkaOptions:
    """Return the options with secrets replaced, safe to print."""
    return {name: "***" if SECRET_OPTION.search(name) else value for name, value in options.items()}
