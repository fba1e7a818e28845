"""`tailrace.preview`: choose records, run the pipeline's stages on them, and write nothing.

A schema registry counts as written to: asking it for the id of a schema that it lacks registers the schema. So records
are encoded without the id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.config.file import Loaded, load
from tailrace.kafka.reader import Message
from tailrace.previews import samples, topics, without_jvm
from tailrace.previews.evaluation import evaluate
from tailrace.previews.model import Preview
from tailrace.stages.arrow_stages import unsupported
from tailrace.status.events import Emit, Starting, ignored

RECORDS = 20
_KEPT = "nothing was written"
_NO_ID = "with a schema registry, values are shown without the schema's id in front"


def preview(
    pipeline: str | Path | Loaded | Pipeline,
    *,
    records: int = RECORDS,
    start: str | Path = topics.NEWEST,
    folder: Path | None = None,
    spark: SparkSession | None = None,
    emit: Emit = ignored,
) -> Preview:
    """Return what a pipeline would make of some records; nothing is written, to no topic, group or ledger.

    `pipeline` is its file, or the loaded configuration; then relative paths start from `folder`. `start` is newest,
    oldest, TOPIC:PARTITION:OFFSET, a time, or a file with records. Spark is started only for a pipeline that needs it,
    and stopped at the end. In a process that has Spark already, as a notebook may, a session with the pipeline's SQL
    settings is used next to the existing one. A session that is passed in is used as it is. Both are left running.
    """
    if isinstance(pipeline, str | Path):
        pipeline = load(Path(pipeline))
    if isinstance(pipeline, Loaded):
        folder, pipeline = pipeline.folder, pipeline.pipeline
    folder = folder or Path.cwd()
    begin = topics.parse(str(start))
    if begin.file is not None:
        chosen = samples.read(begin.file, next(iter(pipeline.source.topics), begin.file.stem), records)
        origin = begin.file.name
    else:
        chosen = topics.read(pipeline, begin, records)
        origin = pipeline.source.pattern or ", ".join(pipeline.source.topics)
    plain = _without_registry(pipeline)
    try:
        if not unsupported(plain) and plain.checkpoint == "ledger":
            found = evaluate(plain, chosen, origin, without_jvm.engine(plain, folder, chosen))
        else:
            found = _with_spark(plain, folder, chosen, origin, spark, emit)
    except errors.TailraceError as error:
        error.kept = _KEPT
        raise
    return found if plain is pipeline else replace(found, notes=(*found.notes, _NO_ID))


def _with_spark(
    pipeline: Pipeline, folder: Path, chosen: Sequence[Message], origin: str, spark: SparkSession | None, emit: Emit
) -> Preview:
    from tailrace.previews import with_spark  # imports the driver, which a preview without the JVM does not need
    from tailrace.startup.session import exists

    with contextlib.ExitStack() as held:
        if spark is None and exists():
            spark = held.enter_context(with_spark.borrowed(pipeline))
        elif spark is None:
            emit(Starting(pipeline.pipeline))
            spark = held.enter_context(with_spark.local(pipeline))
        return evaluate(pipeline, chosen, origin, with_spark.engine(spark, pipeline, folder, chosen))


def _without_registry(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a sink that asks no registry; the same one if its sink does not."""
    if pipeline.sink.registry is None:
        return pipeline
    return pipeline.model_copy(update={"sink": pipeline.sink.model_copy(update={"registry": None})})
