"""The data's way, on one page.

    source ──► decode ──► validate ──► (process) ──► encode ──► sink
                  └──────────┴── rejected ────────────────────►

Everything between source and sink is a pure function from DataFrame to DataFrame, the same for a stream, for one
batch of it that is read again, and for a test's own rows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tailrace import metrics
from tailrace.config import Format, Pipeline
from tailrace.decode import decode
from tailrace.encode import encode
from tailrace.errors import ConfigInvalid
from tailrace.formats.jsonmodel import REFERENCE
from tailrace.module_sources import sources
from tailrace.process import Function, apply, spread, unchanged, validate
from tailrace.rows import KAFKA, VALUE, accepted, rejected, size


@dataclass(frozen=True)
class Assembly:
    """A pipeline with its function loaded; `folder` is where its relative paths begin."""

    pipeline: Pipeline
    function: Function | None
    folder: Path

    def __call__(self, records: DataFrame) -> DataFrame:
        """Rows for the sink, from Kafka's records."""
        pipeline = self.pipeline
        if pipeline.process.arrow is not None:
            raise ConfigInvalid(
                "process.arrow takes Arrow record batches, and Spark plans this pipeline over DataFrames",
                kept="nothing was read or written",
                then="use process.function",
            )
        if pipeline.process.partitions is not None:
            records = spread(records, pipeline.process.partitions)
        decoded = validate(decode(records, pipeline.source, self.folder), pipeline.process.validate_)
        good = accepted(
            decoded.observe(
                metrics.READ,
                F.count(F.lit(1)).alias(metrics.CONSUMED),
                F.coalesce(F.sum(size(F.col(KAFKA)["key"]) + size(F.col(VALUE))), F.lit(0)).alias(metrics.SIZE),
            )
        )
        good = apply(self.function, good, pipeline.process.arguments) if self.function else unchanged(good)
        rows = encode(good, pipeline.sink, self.folder)
        if self.may_reject:
            rows = rows.unionAll(rejected(decoded, "decode"))
        delivered = F.col("reason").isNull()
        rows = rows.observe(
            metrics.WRITTEN,
            F.count_if(delivered).alias(metrics.PRODUCED),
            F.count_if(~delivered).alias(metrics.REJECTED),
        )
        if pipeline.sink.partitions is not None:
            rows = rows.coalesce(pipeline.sink.partitions)
        return rows

    @property
    def shape(self) -> str:
        """Digest what decides which records are rejected before the function."""
        source, process = self.pipeline.source, self.pipeline.process
        schema = source.schema_ or ""
        if REFERENCE.fullmatch(schema):
            texts = [each.read_text() for each in sources(schema, self.folder)]
            text = texts[0] if len(texts) == 1 else repr(texts)
        else:
            file = self.folder / schema
            text = file.read_text() if schema.endswith((".json", ".avsc")) and file.is_file() else ""
        format_ = f"{source.format.value}{'' if source.registry is None else ' of a registry'}"
        return _digest(format_, schema, text, sorted(process.validate_.items()), process.partitions)

    @property
    def code(self) -> str:
        """Digest the function and what it is called with."""
        process = self.pipeline.process
        files = list(self.function.files) if self.function is not None else []
        files += [each for each in sources(process.function or "", self.folder) if each not in files]
        texts = [each.read_text() for each in files if each.is_file()]
        return _digest(
            (process.function or "").rpartition(":")[2],
            texts,
            json.dumps(process.arguments, sort_keys=True, default=str),
        )

    @property
    def spreads(self) -> int:
        """How many shuffles of the plan are Tailrace's own."""
        return (2 if self.may_reject else 1) if self.pipeline.process.partitions is not None else 0

    @property
    def may_reject(self) -> bool:
        """Whether a record can fail before the function: raw bytes without conditions cannot."""
        return self.pipeline.source.format is not Format.RAW or bool(self.pipeline.process.validate_)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
