"""The checks of `tailrace doctor`: each examines one thing, and reports what it found and how to fix it.

A check never raises: a problem is its result. Nothing is written to Kafka except an empty transaction, which is
aborted.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not re-export them
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tailrace import jars
from tailrace.admin.ledger_size import needed
from tailrace.config import TRANSACTION_TIMEOUT_MS, Delivery, Kafka, Pipeline
from tailrace.errors import CertificateExpired, KafkaFailed, NotAuthenticated, NotAuthorized, TailraceError
from tailrace.kafka import certificate
from tailrace.kafka.clients import ANSWER_LIMIT, answered, client_options, committed, persist
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import translate
from tailrace.kafka.rights import (
    Operation,
    Resource,
    Right,
    for_samples,
    on_group,
    on_groups,
    on_topic,
    on_transactions,
)
from tailrace.progress import fences
from tailrace.progress.marker import markers_group, offsets_group

_GIBIBYTE = 1024**3
_MEMORY = 2 * _GIBIBYTE
_RETENTION_DAYS = 7
_PYTHON = (3, 11)
_ANY_TRANSACTION = Right(Operation.WRITE, Resource.TRANSACTIONAL_ID, "tailrace.", prefix=True)
_MESSAGE_BYTES = 1_000_000  # librdkafka's default of message.max.bytes


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's output."""

    name: str
    state: State
    found: str
    hint: str = ""


def ok(name: str, found: str) -> Check:
    """Return a check that passed."""
    return Check(name, State.OK, found)


def warn(name: str, found: str, hint: str) -> Check:
    """Return a check of something that works now, but may fail later."""
    return Check(name, State.WARN, found, hint)


def fail(name: str, found: str, hint: str) -> Check:
    """Return a check of something that keeps a pipeline from working."""
    return Check(name, State.FAIL, found, hint)


def machine() -> Iterator[Check]:
    """Check what Tailrace needs of this machine."""
    version = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, _PYTHON))
    new = sys.version_info[:2] >= _PYTHON
    yield ok("python", version) if new else fail("python", f"{version}, needs {needed}", f"install Python {needed}")
    yield _java()
    yield _spark()
    yield from _jars()
    available = psutil.virtual_memory().available
    found = f"{available / _GIBIBYTE:.1f} GiB available"
    hint = "free some, or lower spark.driver.memory"
    yield ok("memory", found) if available >= _MEMORY else warn("memory", found, hint)


def _java() -> Check:
    try:
        path = jars.java()
        return ok("java", f"{jars.java_version(path)} at {path}")
    except TailraceError as error:
        return fail("java", error.what, error.then)


def _spark() -> Check:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return fail("pyspark", "not installed", "pip install tailrace")
    wanted = _wanted_spark()
    if wanted not in {"", version}:
        return fail("pyspark", f"{version}, needs {wanted}, to match the connector's jars", "pip install tailrace")
    return ok("pyspark", version)


def _wanted_spark() -> str:
    for requirement in importlib.metadata.requires("tailrace") or ():
        if match := re.fullmatch(r"pyspark==([\d.]+)", requirement):
            return match[1]
    return ""


def _jars() -> Iterator[Check]:
    hint = "python -m tailrace.jars"
    uses = ("spark", fail, "a pipeline with state"), ("kafka", warn, "the embedded Kafka of the demo")
    for name, verdict, use in uses:
        lacking = jars.missing(name)  # type: ignore[arg-type]
        label = f"{name} jars"
        if len(lacking) == len(jars.listed(name)):  # type: ignore[arg-type]
            yield ok(label, f"none in {jars.folder()}: {use} would fetch them")
        elif lacking:
            yield verdict(label, f"{len(lacking)} jars of {use} are missing or changed in {jars.folder()}", hint)
        else:
            yield ok(label, f"all in {jars.folder()}")


class Brokers:
    """Checks of the brokers, for a pipeline or in general."""

    def __init__(self, kafka: Kafka, pipeline: Pipeline | None) -> None:
        self._kafka = kafka
        self._pipeline = pipeline
        self._name = pipeline.pipeline if pipeline else None
        self._base = client_options(kafka)
        self._admin = AdminClient(self._base)
        self._cluster = Cluster(kafka)
        self._topics: dict[str, int] = {}

    @property
    def topics(self) -> Iterator[str]:
        """Return the names of the topics, once the brokers were asked."""
        return iter(self._topics)

    def checks(self) -> Iterator[Check]:
        """Run each check in turn; stop if no broker answers."""
        try:
            certificate.check(self._kafka.options, datetime.datetime.now(datetime.UTC))
            self._topics = self._cluster.topics()
        except NotAuthenticated as error:
            yield fail("broker", error.what, "check security.protocol, sasl.* and ssl.* of kafka.options")
            return
        except CertificateExpired as error:
            yield fail("broker", error.what, error.then)
            return
        except TailraceError as error:
            hint = (
                "check the address, security.protocol of the listener, and that its advertised addresses are reachable"
            )
            yield fail("broker", error.what, hint)
            return
        yield ok("broker", f"{self._kafka.bootstrap_servers} answers, {len(self._topics)} topics are visible")
        if self._pipeline is not None:
            yield from self._of(self._pipeline)
        right = on_transactions(self._name) if self._name else _ANY_TRANSACTION
        yield self._asked("transactions", self._transaction, right)
        settings = Right(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, "")
        yield self._asked("offsets retention", self._retention, settings, State.WARN)

    def _of(self, pipeline: Pipeline) -> Iterator[Check]:
        for topic in self._sources(pipeline):
            yield self._topic("source topic", topic, AclOperation.READ)
        if pipeline.source.pattern is not None and not self._sources(pipeline):
            found = f"no topic matches {pipeline.source.pattern!r}"
            yield warn("source topic", found, "create one, or correct source.pattern")
        for topic in pipeline.sink.named:
            yield self._topic("output topic", topic, AclOperation.WRITE)
            if topic in self._topics:
                sizes = partial(self._sizes, pipeline, topic)
                right = on_topic(Operation.DESCRIBE_CONFIGS, topic)
                yield self._asked("message size", sizes, right, State.WARN)
        yield self._ledger(pipeline)
        yield self._own("rejected topic", pipeline.rejected_topic, -1, -1, AclOperation.WRITE)
        for topic in (right.name for right in for_samples(pipeline) if right.name in self._topics):
            check = self._topic("samples", topic, AclOperation.READ)
            yield replace(check, state=State.WARN) if check.state is State.FAIL else check
        offsets, markers = offsets_group(pipeline.pipeline), markers_group(pipeline.pipeline)
        for name, group, right in (
            ("group", offsets, on_group(offsets)),
            ("own groups", markers, on_groups(pipeline.pipeline)),
        ):
            yield self._asked(name, partial(self._group, name, pipeline, group, right), right)

    def _sources(self, pipeline: Pipeline) -> list[str]:
        pattern = pipeline.source.pattern
        if pattern is None:
            return list(pipeline.source.topics)
        return sorted(topic for topic in self._topics if re.fullmatch(pattern, topic))

    def _asked(self, name: str, question: Callable[[], Check], right: Right, denied: State = State.FAIL) -> Check:
        """Ask the brokers; if they refuse, name the missing right."""
        try:
            return question()
        except (KafkaException, TailraceError) as raised:
            error = translate(raised, f"asking for {name}") if isinstance(raised, KafkaException) else raised
            if isinstance(error, NotAuthorized):
                return Check(name, denied, f"not authorized; lacking: {right}", right.command)
            return Check(name, denied, error.what, error.then)

    def _topic(self, name: str, topic: str, *operations: AclOperation) -> Check:
        rights = [on_topic(Operation[operation.name], topic) for operation in operations]
        if topic not in self._topics:
            if self._cluster.hides(topic):
                found = f"{topic} is hidden or does not exist; lacking: {rights[0]}"
                return fail(name, found, rights[0].command)
            hint = f"tailrace kafka topic create FILE {topic}, or correct its name in the configuration"
            return fail(name, f"{topic} does not exist", hint)

        def question() -> Check:
            futures = self._admin.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=ANSWER_LIMIT
            )
            allowed = answered(futures[topic], ANSWER_LIMIT, f"describing {topic!r}").authorized_operations
            if allowed and AclOperation.ALL not in allowed:
                for operation, right in zip(operations, rights, strict=True):
                    if operation not in allowed:
                        return fail(name, f"{topic}: not authorized; lacking: {right}", right.command)
            return ok(name, f"{topic}, {self._topics[topic]} partitions")

        return self._asked(name, question, rights[0])

    def _own(self, name: str, topic: str, partitions: int, replication: int, *operations: AclOperation) -> Check:
        """Check a topic of Tailrace's own: it exists, or Tailrace may create it."""
        if topic in self._topics:
            return self._topic(name, topic, *operations)
        new = NewTopic(topic, num_partitions=partitions, replication_factor=replication)

        def question() -> Check:
            asked = self._admin.create_topics([new], validate_only=True)
            answered(asked[topic], ANSWER_LIMIT, f"asking whether {topic!r} can be created")
            return ok(name, f"{topic} does not exist yet, and can be created")

        if self._cluster.hides(topic):
            return self._topic(name, topic, *operations)  # it may exist: then the missing right is not Create
        return self._asked(name, question, on_topic(Operation.CREATE, topic))

    def _ledger(self, pipeline: Pipeline) -> Check:
        ledger, name = pipeline.ledger, "ledger"
        operations = AclOperation.READ, AclOperation.WRITE
        found = self._own(name, ledger.topic, ledger.partitions, ledger.replication, *operations)
        has = self._topics.get(ledger.topic)
        if found.state is not State.OK or has is None:
            return found
        try:
            need = needed(pipeline, sum(self._topics.get(topic, 0) for topic in self._sources(pipeline)))
        except (TailraceError, ValueError) as error:  # another check tells of it
            return warn(name, f"how many partitions {ledger.topic} needs is not known", str(error).split("\n")[0])
        if has < need.at_most:
            needs = "needs" if has < need.certain else "may need"
            return (fail if has < need.certain else warn)(
                name,
                f"{ledger.topic} has {has} partitions, and a batch {needs} {need.at_most}, one per sink partition",
                f"give {ledger.topic} at least {need.at_most} partitions, or set sink.partitions",
            )

        def question() -> Check:
            policy = self._setting(ResourceType.TOPIC, ledger.topic, "cleanup.policy")
            if policy != "compact":
                hint = f"set cleanup.policy=compact on {ledger.topic}: with {policy} the plans will be deleted"
                return fail(name, f"{ledger.topic} has cleanup.policy={policy}", hint)
            return found

        return self._asked(name, question, on_topic(Operation.DESCRIBE_CONFIGS, ledger.topic), State.WARN)

    def _sizes(self, pipeline: Pipeline, topic: str) -> Check:
        takes = int(self._setting(ResourceType.TOPIC, topic, "max.message.bytes"))
        sends = int(pipeline.sink.options.get("message.max.bytes", _MESSAGE_BYTES))
        found = f"the sink sends up to {sends:,} bytes, {topic} takes {takes:,}"
        if sends > takes:
            hint = f"set max.message.bytes={sends} on {topic}, or lower message.max.bytes in sink.options"
            return warn("message size", found, hint)
        return ok("message size", found)

    def _group(self, name: str, pipeline: Pipeline, group: str, right: Right) -> Check:
        consumer = Consumer(self._base | {"group.id": group, "enable.auto.commit": False})
        try:
            place = TopicPartition(next(iter(self._sources(pipeline)), pipeline.ledger.topic), 0)
            committed(consumer, [place], f"reading offsets of {group}", [right], ANSWER_LIMIT, group_alone=True)
        finally:
            consumer.close()
        return ok(name, f"offsets of {group} can be read")

    def _transaction(self) -> Check:
        name = f"tailrace.{self._name}.doctor" if self._name else "tailrace.doctor"
        timeout = int(fences.TRANSACTION_TIMEOUT * 1000)
        if self._pipeline is not None and self._pipeline.sink.delivery is Delivery.EXACTLY_ONCE:
            timeout = int(self._pipeline.sink.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        producer = Producer(self._base | {"transactional.id": name, "transaction.timeout.ms": timeout})
        persist(lambda: producer.init_transactions(ANSWER_LIMIT), f"starting transactions as {name}")
        producer.begin_transaction()
        producer.abort_transaction(ANSWER_LIMIT)
        return ok("transactions", f"begun and aborted one as {name}")

    def _retention(self) -> Check:
        broker = next(iter(self._admin.list_topics(timeout=ANSWER_LIMIT).brokers))
        minutes = int(self._setting(ResourceType.BROKER, str(broker), "offsets.retention.minutes"))
        days = minutes / 60 / 24
        found = f"markers of an idle pipeline are kept for {days:.3g} days"
        if days < _RETENTION_DAYS:
            hint = f"set offsets.retention.minutes={_RETENTION_DAYS * 24 * 60} or more on the brokers"
            return warn("offsets retention", found, hint)
        return ok("offsets retention", found)

    def _setting(self, kind: ResourceType, name: str, setting: str) -> str:
        futures: dict[Any, Any] = self._admin.describe_configs(
            [ConfigResource(kind, name)], request_timeout=ANSWER_LIMIT
        )
        [future] = futures.values()
        found = answered(future, ANSWER_LIMIT, f"describing {name}").get(setting)
        if found is None or found.value is None:
            raise KafkaFailed(f"the brokers do not tell {setting} of {name}")
        return str(found.value)
