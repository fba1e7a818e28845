"""Spark settings for the state of a stateful pipeline, on a disk or on an object store.

They are defaults, which `spark:` in the configuration overrides. This module imports neither Spark nor Kafka.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.config import SECRET_OPTION, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S3A = "s3a:"
HADOOP = "spark.hadoop."

# The folder of a pipeline without a checkpoint is scratch, recreated at each start, so its files need no checksum files
# next to them, neither Spark's nor Hadoop's: each of those makes the JVM fork a few times per batch.
SCRATCH = {
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
STORE = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
    # One object per file: S3 has its own checksums, and the write of a second object may fail when the first did not.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}
# An outage must end the batch within about a minute; S3A's own defaults retry for many.
_S3A = {
    "create.performance": "true",
    "attempts.maximum": "3",
    "retry.limit": "4",
    "retry.interval": "200ms",
    "retry.throttle.limit": "6",
    "retry.throttle.interval": "200ms",
    "connection.establish.timeout": "15s",
    "connection.timeout": "15s",
    "connection.acquisition.timeout": "15s",
    "connection.request.timeout": "20s",
    "aws.credentials.provider": ",".join(
        (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
            "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
            "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider",
            "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
        )
    ),
}


def settings(pipeline: Pipeline) -> dict[str, str]:
    """Return the default Spark settings for the pipeline's checkpoint."""
    if pipeline.checkpoint == "ledger":
        return dict(SCRATCH)
    if not on_s3(pipeline):
        return dict(STATE)
    wanted = {f"{HADOOP}fs.s3a.{name}": value for name, value in _S3A.items()}
    endpoint = pipeline.spark.get(f"{HADOOP}fs.s3a.endpoint", "")
    if endpoint and "amazonaws.com" not in endpoint:  # MinIO and similar stores have neither bucket hosts nor regions
        wanted |= {f"{HADOOP}fs.s3a.path.style.access": "true", f"{HADOOP}fs.s3a.endpoint.region": "us-east-1"}
    return STATE | STORE | wanted


def on_s3(pipeline: Pipeline) -> bool:
    """Return whether the checkpoint is on an object store."""
    return pipeline.checkpoint.startswith(S3A)


def local(folder: Path) -> str:
    """Return the address of a folder for Hadoop, which takes a path as it is, so that nothing may be escaped in it.

    An earlier version escaped blanks, say, and so wrote to another folder than the one that was named.
    """
    found = folder.resolve()
    escaped = found.as_uri().removeprefix("file://")
    return f"file://{escaped if _is_one(escaped) and not _is_one(str(found)) else found}"


def _is_one(folder: str) -> bool:
    """Return whether a folder holds a checkpoint; an empty one may be a volume that was mounted for it."""
    return os.path.exists(os.path.join(folder, "metadata"))


def hidden(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that hold a Hadoop secret; Spark would show them in the arguments of its own process."""
    secret = re.compile(rf"{SECRET_OPTION.pattern}|(access|encryption)[.]?key", re.IGNORECASE)
    return {name: value for name, value in settings.items() if name.startswith(HADOOP) and secret.search(name)}


def prepare(spark: SparkSession, pipeline: Pipeline) -> None:
    """Give the session its secrets, which it cannot be started with, and an existing session its settings too."""
    chosen = settings(pipeline) | pipeline.spark
    # A session that is used for several pipelines must not keep the checkpoint manager of the previous one.
    for name in STATE | STORE:
        if name in chosen:
            spark.conf.set(name, chosen[name])
        else:
            spark.conf.unset(name)
    if on_s3(pipeline):
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in chosen.items():
            if name.startswith(HADOOP):
                hadoop.set(name.removeprefix(HADOOP), value)
