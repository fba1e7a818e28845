"""Spark's classes in a form that a JVM need not read and check anew: half of the time that a session takes to start.

The JVM writes such an archive when it ends (`-XX:ArchiveClassesAtExit`), and it is good for the same JVM and jars only:
they are in its name. `make test` and `make faults` have it made where it is missing; without it all is as well, slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tailrace import jars

_LIMIT = 300.0
# An archive that does not fit is a warning, which would stand amid the events of a driver on stdout.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def place() -> Path:
    """Where the archive of this JVM and these jars is, or would be."""
    told = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    names = sorted(str(each) for each in Path(pyspark.__file__).parent.glob("jars/*.jar"))
    key = hashlib.sha256("\n".join([told, *names]).encode()).hexdigest()[:12]
    return jars.folder().parent / f"classes-{key}.jsa"


def use() -> None:
    """Sessions that start from here on, in whatever process below, take the archive if it is there."""
    archive = place()
    if archive.is_file() and "SPARK_SUBMIT_OPTS" not in os.environ:
        # Short runs: what the JVM's second compiler makes faster is over before it has made it.
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={archive} -XX:TieredStopAtLevel=1 {_QUIET}"


def make() -> None:
    """Run a little of everything in a session of its own, which leaves the archive."""
    archive = place()
    if archive.is_file():
        return
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:  # a JVM that writes too late finds it gone
            draft = Path(folder, archive.name)
            told = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={draft} {_QUIET}"}
            subprocess.run(
                [sys.executable, __file__, "train"], env=os.environ | python | told, check=True, timeout=_LIMIT
            )
            draft.replace(archive)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"no archive of classes ({error}): the tests start more slowly\n")


def _train() -> None:
    """What the sessions of tests do: SQL with a shuffle, and Arrow in Python."""
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    settings["spark.ui.showConsoleProgress"] = "false"
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def same(batches: Iterator[object]) -> Iterator[object]:
        yield from batches

    rows = spark.range(1000).selectExpr("id % 7 as k", "encode(cast(id as string), 'utf-8') as v").repartition(2)
    rows.groupBy("k").count().collect()
    rows.mapInArrow(same, "k long, v binary").selectExpr("to_json(struct(*)) as v").collect()
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is not None and gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends in order, and writes
        gateway.proc.wait(_LIMIT)


if __name__ == "__main__":
    _train() if sys.argv[1:] == ["train"] else make()
