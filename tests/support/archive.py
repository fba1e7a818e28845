"""A class data archive (CDS) of Spark's classes: it saves half of the time that a session takes to start.

The JVM writes such an archive when it exits (`-XX:ArchiveClassesAtExit`). It is valid for the same JVM and jars only;
its name identifies them. `make test` and `make faults` create it if it is missing; without it tests only start slower.
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
# The JVM's warning about an archive that does not fit would land among a driver's events on stdout.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def place() -> Path:
    """Return the path of the archive for this JVM and these jars, whether or not it exists."""
    version = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    names = sorted(str(each) for each in Path(pyspark.__file__).parent.glob("jars/*.jar"))
    key = hashlib.sha256("\n".join([version, *names]).encode()).hexdigest()[:12]
    return jars.folder().parent / f"classes-{key}.jsa"


def use() -> None:
    """Let sessions started from now on, by this process or its children, use the archive if it exists."""
    archive = place()
    if archive.is_file() and "SPARK_SUBMIT_OPTS" not in os.environ:
        # Runs are short: they end before the JVM's second compiler pays off.
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={archive} -XX:TieredStopAtLevel=1 {_QUIET}"


def make() -> None:
    """Create the archive by running a little of everything in a session of its own."""
    archive = place()
    if archive.is_file():
        return
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:  # a JVM that writes too late finds it gone
            draft = Path(folder, archive.name)
            options = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={draft} {_QUIET}"}
            subprocess.run(
                [sys.executable, __file__, "train"], env=os.environ | python | options, check=True, timeout=_LIMIT
            )
            draft.replace(archive)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"no archive of classes ({error}): the tests start more slowly\n")


def _train() -> None:
    """Do what the sessions of tests do: SQL with a shuffle, and Arrow in Python."""
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
        gateway.proc.stdin.close()  # the JVM exits in order, and writes the archive
        gateway.proc.wait(_LIMIT)


if __name__ == "__main__":
    _train() if sys.argv[1:] == ["train"] else make()
