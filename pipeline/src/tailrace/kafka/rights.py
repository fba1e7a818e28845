"""The Kafka rights that a pipeline's principal needs, named as in an access control list.

Errors name missing rights in these words, the how-to lists them, and the tests grant exactly these. Read, Write, Delete
and Alter imply Describe, so it is not listed with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.config import Pipeline

SPARK_GROUPS = "spark-kafka-source"


class Operation(StrEnum):
    """An operation, as kafka-acls names it."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class Resource(StrEnum):
    """A type of resource, as messages name it."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


_OPTIONS = {
    Resource.TOPIC: "--topic",
    Resource.GROUP: "--group",
    Resource.TRANSACTIONAL_ID: "--transactional-id",
    Resource.CLUSTER: "--cluster",
}


@dataclass(frozen=True, order=True)
class Right:
    """One entry of an access control list; with `prefix`, for every resource whose name starts with `name`."""

    operation: Operation
    resource: Resource
    name: str
    prefix: bool = False

    def __str__(self) -> str:
        if self.resource is Resource.CLUSTER:
            return f"{self.operation} on the cluster"
        if self.prefix:
            return f"{self.operation} on {self.resource}s with the prefix {self.name}"
        return f"{self.operation} on {self.resource} {self.name}"

    @property
    def command(self) -> str:
        """The command that grants it."""
        pattern = " --resource-pattern-type prefixed" if self.prefix else ""
        place = "" if self.resource is Resource.CLUSTER else f" {self.name}"
        return (
            "kafka-acls --bootstrap-server HOST:PORT --command-config ADMIN --add --allow-principal User:NAME "
            f"--operation {self.operation} {_OPTIONS[self.resource]}{place}{pattern}"
        )


def on_topic(operation: Operation, topic: str) -> Right:
    """Return a right on one topic."""
    return Right(operation, Resource.TOPIC, topic)


def on_group(group: str) -> Right:
    """Return the right to read and commit offsets as this group, and to be a member of it."""
    return Right(Operation.READ, Resource.GROUP, group)


def on_groups(pipeline: str) -> Right:
    """Return the right on a pipeline's groups: markers, drivers, readers."""
    return Right(Operation.READ, Resource.GROUP, f"tailrace.{pipeline}.", prefix=True)


def on_transactions(pipeline: str) -> Right:
    """Return the right on a pipeline's transactional ids: the driver's, and one for each sink partition."""
    return Right(Operation.WRITE, Resource.TRANSACTIONAL_ID, f"tailrace.{pipeline}.", prefix=True)


def needed(pipeline: Pipeline, sources: Sequence[str] = ()) -> tuple[Right, ...]:
    """Return the rights that a pipeline needs if its own topics exist; `sources` are the topics matching a pattern."""
    name, ledger = pipeline.pipeline, pipeline.ledger.topic
    found = [on_topic(Operation.READ, topic) for topic in sources or pipeline.source.topics]
    found += [on_topic(Operation.WRITE, topic) for topic in pipeline.sink.named]
    found += [
        on_topic(Operation.WRITE, pipeline.rejected_topic),
        on_topic(Operation.READ, ledger),
        on_topic(Operation.WRITE, ledger),
        on_group(f"tailrace.{name}"),
        on_groups(name),
        on_transactions(name),
    ]
    before = pipeline.offsets.from_
    if before is not None:
        found.append(on_group(before))
        if before.startswith("tailrace."):  # another pipeline: whether it runs, its markers, and its driver's id
            found += [on_groups(before.removeprefix("tailrace.")), on_transactions(before.removeprefix("tailrace."))]
    return tuple(found)


def for_samples(pipeline: Pipeline) -> tuple[Right, ...]:
    """Return the additional rights to show records on the status page; without them the pipeline works all the same."""
    if not pipeline.metrics.samples:
        return ()
    topics = dict.fromkeys([*pipeline.sink.named, pipeline.rejected_topic])
    return tuple(on_topic(Operation.READ, topic) for topic in topics)


def to_create(pipeline: Pipeline) -> tuple[Right, ...]:
    """Return the additional rights it needs if its own topics do not exist yet."""
    return tuple(on_topic(Operation.CREATE, topic) for topic in (pipeline.ledger.topic, pipeline.rejected_topic))
