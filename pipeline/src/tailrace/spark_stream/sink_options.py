"""The options of the drop-in sink, named after those of Spark's Kafka sink."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from tailrace import errors
from tailrace.config import (
    CONNECTION_OPTIONS,
    LEDGER_PARTITIONS,
    LEDGER_TOPIC,
    SINK_OPTIONS,
    Delivery,
    Kafka,
    contradictions,
)
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation
from tailrace.progress.ledger_topic import LEDGER_SETTINGS

if TYPE_CHECKING:
    Batches = Iterator[pa.RecordBatch]

_OWN = ("topic", "delivery", "rejected.topic", "ledger.topic", "id", "replay")
# Options that Spark adds to those of a sink.
_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})
_TYPES: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "partition": ("int",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "timestamp": ("bigint", "timestamp"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True)
class Target:
    """Where the sink writes, according to its options."""

    kafka: Kafka
    sink: dict[str, str]
    topic: str | None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    rejected: str | None = None
    ledger: str = LEDGER_TOPIC
    id: str | None = None
    by_number: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Target:
        """Build the target from these options; refuse an unknown one."""
        given = {name.lower(): str(value) for name, value in options.items() if name.lower() not in _SPARKS}
        servers = given.pop("kafka.bootstrap.servers", None)
        if servers is None:
            raise errors.OptionRefused("the option kafka.bootstrap.servers is missing", then="name the brokers")
        clients = {name[6:]: given.pop(name) for name in list(given) if name.startswith("kafka.")}
        own = {name: given.pop(name, None) for name in _OWN}
        if given:
            raise _unknown(next(iter(given)), list(_OWN))
        for name in clients:
            if name not in CONNECTION_OPTIONS | SINK_OPTIONS:
                raise _unknown(f"kafka.{name}", sorted(f"kafka.{each}" for each in CONNECTION_OPTIONS | SINK_OPTIONS))
        sink = {name: value for name, value in clients.items() if name in SINK_OPTIONS}
        try:
            delivery = Delivery(own["delivery"] or Delivery.EXACTLY_ONCE)
            contradictions(sink, delivery)
        except ValueError as error:
            raise errors.OptionRefused(str(error), kept="nothing was written") from error
        if own["replay"] not in {None, "by-number", "by-content"}:
            raise errors.OptionRefused(f"replay is by-content or by-number, not {own['replay']!r}")
        connection = {name: value for name, value in clients.items() if name in CONNECTION_OPTIONS}
        return cls(
            kafka=Kafka(bootstrap_servers=servers, options=connection),
            sink=sink,
            topic=own["topic"],
            delivery=delivery,
            rejected=own["rejected.topic"],
            ledger=own["ledger.topic"] or LEDGER_TOPIC,
            id=own["id"],
            by_number=own["replay"] == "by-number",
        )

    def check(self, schema: StructType) -> None:
        """Refuse columns that cannot form a record."""
        found = {each.name: each.dataType.simpleString() for each in schema.fields}
        for name, kind in found.items():
            if name not in _TYPES:
                raise errors.SinkColumnsInvalid(
                    f"the sink takes no column {name!r}", then=f"its columns are {', '.join(_TYPES)}; drop the others"
                )
            if kind not in _TYPES[name]:
                raise errors.SinkColumnsInvalid(f"column {name!r} is {kind}, not {' or '.join(_TYPES[name])}")
        if "value" not in found:
            raise errors.SinkColumnsInvalid("there is no column `value`", then="name the column to write `value`")
        if self.topic is None and "topic" not in found:
            raise errors.SinkColumnsInvalid("there is neither an option `topic` nor a column `topic`")

    def prepare(self) -> None:
        """Make sure, on the driver, that the topics exist."""
        cluster = Cluster(self.kafka)
        if self.topic is not None:
            cluster.require([self.topic], "sink topic", Operation.WRITE)
        if self.delivery is Delivery.EXACTLY_ONCE:
            cluster.ensure(self.ledger, LEDGER_PARTITIONS, -1, LEDGER_SETTINGS, Operation.READ)

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a producer."""
        return client_options(self.kafka) | self.sink


def _unknown(name: str, known: list[str]) -> errors.OptionRefused:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
    return errors.OptionRefused(f"the sink takes no option {name!r}; {hint}", kept="nothing was written")


def rows_of(batches: Batches) -> Batches:
    """Convert the caller's columns to the row layout that the gateway takes."""
    for batch in batches:
        have = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
        columns = []
        for name, kind in zip(ROW_SCHEMA.names, ROW_SCHEMA.types, strict=True):
            column = have.get(name)
            if column is None:
                columns.append(pa.nulls(batch.num_rows, kind))
            elif name == "timestamp" and pa.types.is_timestamp(column.type):
                columns.append(column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(kind))
            else:
                columns.append(column if name == "headers" else column.cast(kind))
        yield pa.RecordBatch.from_arrays(columns, names=ROW_SCHEMA.names)
