"""What must hold before anything starts, asked of the brokers and of the schema registry while Spark is not up yet.

An older driver still runs meanwhile, so what is refused here costs no record's time.
"""

from __future__ import annotations

import datetime
from pathlib import Path

from tailrace.config import Format, Pipeline
from tailrace.errors import KafkaFailed, SchemaInvalid
from tailrace.kafka import certificate, source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation
from tailrace.status.events import Emit, Noted, ignored


def preflight(pipeline: Pipeline, cluster: Cluster, folder: Path | None = None, emit: Emit = ignored) -> None:
    """Check brokers, topics and schemas, and create Tailrace's own topics."""
    certificate.check(pipeline.kafka.options, datetime.datetime.now(datetime.UTC))
    topics = sorted({topic for topic, _ in source.partitions_of(pipeline, cluster)})
    if pipeline.sink.named:
        cluster.require(pipeline.sink.named, "sink topic", Operation.WRITE)
    schemas(pipeline, folder or Path.cwd(), topics, emit)
    cluster.ensure(pipeline.rejected_topic, 1, -1, {})


def schemas(pipeline: Pipeline, folder: Path, topics: list[str], emit: Emit) -> None:
    """Compare the schemas with the registry's, if the pipeline has one.

    A sink's schema that the registry refuses could write no record: it ends the start. A source whose newest schema
    cannot be read is noted: its records are rejected, those of others are not, and an older pipeline may restart.
    """
    wanted = [each for each in (pipeline.source, pipeline.sink) if each.registry and each.format == Format.AVRO]
    if not wanted:
        return
    try:
        from tailrace.stages.formats.evolution import readings, writing
    except ImportError:  # fastavro is an extra; the format says so itself
        return
    try:
        for read in readings(pipeline.source, folder, topics):
            if read.newest_unread:
                emit(Noted(f"{read.words}; the records of version {read.versions[-1]} will be rejected"))
        written = writing(pipeline.sink, folder)
    except KafkaFailed as error:  # the registry may be back before its first record is
        emit(Noted(f"the schemas were not compared: {error.what}"))
        return
    if written is not None and written.refusal:
        raise SchemaInvalid(written.refusal, kept="nothing was read or written", then=written.then)
