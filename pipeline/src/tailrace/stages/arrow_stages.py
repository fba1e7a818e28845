"""The stages of a pipeline without a JVM: decode → process → encode, on Arrow batches in one Python process.

`ArrowSpec` is made where the pipeline starts; it checks all that can be checked before a record is read, and is sent to
the workers. `ArrowStages` does the work there. Rows, reasons and headers are those of `tailrace.stages.decode`,
`tailrace.stages.process` and `tailrace.stages.encode`, whose rules it shares.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.config import Pipeline, Rule, Sink
from tailrace.errors import ConfigInvalid, SinkColumnsInvalid
from tailrace.stages.arrow_function import ABORTED, Batches, Shipped, run
from tailrace.stages.arrow_rows import HEADERS, ORIGIN, RECORD, column, finished, milliseconds, origin, plain, rejected
from tailrace.stages.condition_values import Condition
from tailrace.stages.conditions import Unsupported
from tailrace.stages.encode import check_columns, has_origin, value_names
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.base import SinkFormat, SourceFormat, invalid
from tailrace.stages.formats.json_write import texts
from tailrace.stages.formats.known import sink_format, source_format
from tailrace.stages.formats.raw_format import RawSink, RawSource
from tailrace.stages.process import NAME as PROCESS
from tailrace.stages.rows import KAFKA
from tailrace.stages.rules import Judged
from tailrace.stages.spark_text import first_line

_UNCHANGED = ("key", "value", "headers", "timestamp")
_UTC = frozenset({"UTC", "Etc/UTC", "Z", "GMT"})
_SPARK_S_WAY = ("spark.sql.json.", "spark.sql.legacy.", "spark.sql.ansi.")
_TIME_ZONE = "spark.sql.session.timeZone"


def unsupported(pipeline: Pipeline) -> str:
    """Return why these stages cannot run the pipeline; empty if they can."""
    process = pipeline.process
    if process.function is not None:
        return "process.function works on DataFrames"
    if process.validate_ and process.arrow is None:
        return "process.validate is SQL"
    if process.partitions is not None:
        return "process.partitions shuffles"
    if pipeline.spark.get(_TIME_ZONE, "UTC") not in _UTC:
        return f"{_TIME_ZONE} is not UTC"
    changed = next((name for name in pipeline.spark if name.startswith(_SPARK_S_WAY)), None)
    if changed is not None:
        return f"{changed} changes how Spark reads and writes values"
    return ""


@dataclass(frozen=True)
class ArrowSpec:
    """Everything a worker needs to know about a pipeline; two specs with the same digest are equal."""

    digest: str
    source: SourceFormat = field(compare=False, repr=False)
    sink: SinkFormat = field(compare=False, repr=False)
    settings: Sink = field(compare=False, repr=False)
    function: Shipped | None = field(compare=False, repr=False)
    arguments: dict[str, Any] = field(compare=False, repr=False)
    rules: dict[str, Rule] = field(compare=False, repr=False)

    @classmethod
    def of(cls, pipeline: Pipeline, folder: Path) -> ArrowSpec:
        """Check the pipeline and read its schemas and its function; relative paths start from `folder`."""
        why = unsupported(pipeline)
        if why:
            raise ConfigInvalid(
                f"{why}, so the pipeline cannot run without the JVM", kept=KEPT, then="change the configuration"
            )
        settings, process = pipeline.sink, pipeline.process
        source = source_format(pipeline.source, folder, jvm=False)
        sink = sink_format(settings, folder)
        function = None
        if process.arrow is not None:
            function = Shipped.of(process.arrow, folder, process.arguments)
        else:
            check(_unchanged_schema(source.fields), settings, sink)
        conditions(process.validate_, source.fields)
        parts = (source, sink.prepared(), settings, function, process.arguments, process.validate_)
        return cls(hashlib.sha256(pickle.dumps((pipeline.source, *parts))).hexdigest()[:16], *parts)

    @property
    def copies(self) -> bool:
        """Return whether raw values are copied unchanged."""
        return self.function is None and isinstance(self.source, RawSource) and isinstance(self.sink, RawSink)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of Kafka's records that the stages need."""
        return _UNCHANGED if self.copies else tuple(RECORD.names)


def decoded_schema(fields: StructType | None) -> pa.Schema:
    """Return the columns of decoded records, which conditions are about."""
    decoded = [pa.field("value", pa.binary())] if fields is None else list(to_arrow_schema(fields, timezone="UTC"))
    return pa.schema([*decoded, pa.field(KAFKA, pa.struct(ORIGIN))])


def conditions(rules: Mapping[str, Rule], fields: StructType | None) -> dict[str, Condition]:
    """Return the rules' conditions, checked against the fields of a value; raise ConfigInvalid if one needs Spark."""
    schema = decoded_schema(fields)
    found = {}
    for name, rule in rules.items():
        try:
            found[name] = Condition(rule.condition, schema)
        except Unsupported as error:
            raise ConfigInvalid(
                f"process.validate: the condition {name!r}, `{rule.condition}`, cannot be evaluated on Arrow batches: "
                f"{error}",
                kept=KEPT,
                then="write it without that, or use process.function, whose conditions Spark evaluates",
            ) from None
    return found


def _unchanged_schema(fields: StructType | None) -> pa.Schema:
    """Return the columns of records that are written just as they were decoded."""
    value = pa.binary() if fields is None else pa.struct(list(to_arrow_schema(fields, timezone="UTC")))
    record = {name: RECORD.field(name).type for name in _UNCHANGED}
    return pa.schema([(name, value if name == "value" else kind) for name, kind in record.items()])


def check(schema: pa.Schema, settings: Sink, sink: SinkFormat) -> StructType:
    """Return the columns as Spark sees them; raise SinkColumnsInvalid if they cannot be written."""
    try:
        found = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except (PySparkException, NotImplementedError) as error:
        raise invalid(f"Spark has no type for them: {first_line(error)}") from None
    check_columns(found, settings, sink)
    return found


class ArrowStages:
    """The stages of one pipeline in one process; `stages_of` caches them."""

    def __init__(self, spec: ArrowSpec) -> None:
        self._spec = spec
        self.columns = spec.columns
        fields = spec.source.fields
        self._wanted = to_arrow_schema(fields, timezone="UTC") if fields is not None else None
        self._read = spec.source.reader() if fields is not None else None
        self._write = spec.sink.writer()
        self._call = spec.function.load() if spec.function is not None else None
        self._rules = conditions(spec.rules, fields)
        self._checked: dict[pa.Schema, StructType] = {}

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """Split Kafka's records into good rows, with their fields and `kafka`, and rows for the rejected topic."""
        good, aside, _ = self.judge(batch)
        return good, aside

    def judge(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Judged]:
        """Decode and apply the rules; return good rows, rows for the rejected topic, and the counts of the rules."""
        if self._spec.copies:
            return batch, None, ()
        kafka = origin(batch)
        values = column(batch, "value")
        wrong: dict[int, tuple[str, str, str]] = {}  # stage, reason and detail, by the record's number
        if self._read is None or self._wanted is None:
            good = _batch([values, kafka], ["value", KAFKA])
        else:
            try:
                arrays, verdicts = self._read(values)
            except StopIteration as error:  # iterators call this: they would take it for the end of the records
                raise RuntimeError("the format's decoder raised StopIteration") from error
            good = _batch([*arrays, kafka], [*self._wanted.names, KAFKA])
            for number, reason in enumerate(verdicts.reasons):
                if reason is not None:
                    wrong[number] = "decode", reason, verdicts.details[number] or ""
        good = _without(good, wrong)
        judged: Judged = ()
        if self._rules:
            good, broken, judged = self._ruled(good, [each for each in range(batch.num_rows) if each not in wrong])
            wrong |= broken
        return good, _aside(batch, kafka, wrong), judged

    def _ruled(
        self, rows: pa.RecordBatch, numbers: list[int]
    ) -> tuple[pa.RecordBatch, dict[int, tuple[str, str, str]], Judged]:
        """Return the rows that no rule rejects, the rejected ones by their numbers, and the counts of the rules."""
        wrong: dict[int, tuple[str, str, str]] = {}
        counts = [rows.num_rows]
        for name, rule in self._spec.rules.items():
            met = self._rules[name](rows)
            counts.append(rows.num_rows - (pc.sum(met).as_py() or 0))
            if rule.rejects and counts[-1]:
                kept = met.to_pylist()
                wrong |= {
                    number: (PROCESS, name, rule.condition)
                    for number, good in zip(numbers, kept, strict=True)
                    if not good
                }
                numbers = [number for number, good in zip(numbers, kept, strict=True) if good]
                rows = rows.filter(met)
        return rows, wrong, tuple(counts)

    def process(self, batches: Iterator[pa.RecordBatch]) -> Batches:
        """Yield the output of the user's function for good rows; without a function, each record unchanged."""
        if self._call is None or self._spec.function is None:
            return map(self._unchanged, batches)
        files = {path for _, path, _ in self._spec.function.modules}
        own = inspect.getsourcefile(self._call) if inspect.isroutine(self._call) else None
        files |= {own} if own else set()
        return run(self._call, self._spec.function.reference, frozenset(files), batches, self._spec.arguments)

    def _unchanged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._spec.copies:
            return batch
        kafka = batch.column(KAFKA)
        names = [name for name in batch.schema.names if name != KAFKA]
        if self._wanted is None:
            value = batch.column("value")
        else:
            kinds = [batch.schema.field(name) for name in names]
            value = pa.StructArray.from_arrays([batch.column(name) for name in names], fields=kinds)
        return _batch(
            [kafka.field("key"), value, kafka.field("headers"), kafka.field("timestamp"), kafka], [*_UNCHANGED, KAFKA]
        )

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Encode rows for the gateway; rows that cannot be written get a reason."""
        batch = _batch([plain(each) for each in batch.columns], batch.schema.names)
        known = self._check(batch.schema)
        address = self._address(batch)
        kafka = batch.column(KAFKA) if has_origin(known) else None
        names = value_names(known)
        try:
            value, verdicts = self._write(batch.select(names))
        except SinkColumnsInvalid as error:
            raise _aborted(error) from None
        return finished(address, value, kafka, {} if verdicts is None else verdicts.refused())

    def _check(self, schema: pa.Schema) -> StructType:
        if schema not in self._checked:
            try:
                self._checked[schema] = check(schema, self._spec.settings, self._spec.sink)
            except SinkColumnsInvalid as error:
                raise _aborted(error) from None
        return self._checked[schema]

    def _address(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        rows, names, topic = batch.num_rows, batch.schema.names, self._spec.settings.topic
        topics = batch.column("topic") if "topic" in names else pa.nulls(rows, pa.string())
        if topic is not None and topics.null_count:
            topics = topics.fill_null(topic) if topics.null_count < rows else pa.repeat(pa.scalar(topic), rows)
        key = batch.column("key") if "key" in names else pa.nulls(rows, pa.binary())
        if pt.is_nested(key.type):
            key = texts(key)
        headers = batch.column("headers") if "headers" in names else pa.nulls(rows, HEADERS)
        moments = batch.column("timestamp") if "timestamp" in names else None
        return {
            "topic": topics,
            "partition": batch.column("partition") if "partition" in names else pa.nulls(rows, pa.int32()),
            "key": key.cast(pa.binary()),
            "headers": headers if headers.type.equals(HEADERS) else headers.cast(HEADERS),
            "timestamp": pa.nulls(rows, pa.int64()) if moments is None else milliseconds(moments),
        }


def _batch(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=list(names))


def _without(rows: pa.RecordBatch, wrong: Collection[int]) -> pa.RecordBatch:
    return rows.filter(pa.array([number not in wrong for number in range(rows.num_rows)])) if wrong else rows


def _aside(
    records: pa.RecordBatch, kafka: pa.StructArray, wrong: Mapping[int, tuple[str, str, str]]
) -> pa.RecordBatch | None:
    """Return the rows for the rejected topic, in the order of the records; None if there are none."""
    if not wrong:
        return None
    where = sorted(wrong)
    stages, reasons, details = zip(*(wrong[number] for number in where), strict=True)
    return rejected(records, kafka, where, reasons, details, stages)


def _aborted(error: SinkColumnsInvalid) -> SinkColumnsInvalid:
    """Return the error as raised in the middle of a batch, whose transactions were aborted."""
    return SinkColumnsInvalid(error.what, kept=ABORTED, then=error.then)


_made: dict[ArrowSpec, ArrowStages] = {}
_making = threading.Lock()


def stages_of(spec: ArrowSpec) -> ArrowStages:
    """Return this process's stages for a pipeline."""
    with _making:
        if spec not in _made:
            _made[spec] = ArrowStages(spec)
        return _made[spec]
