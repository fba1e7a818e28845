"""Class data archives (CDS) of Spark's and Kafka's classes: they save up to half of the time to start.

The JVM writes such an archive when it exits (`-XX:ArchiveClassesAtExit`). It is valid for the same JVM and jars only;
its name identifies them. `make test` and `make faults` create those that are missing; without them tests only start
slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tailrace import jars
from tailrace.testing import Record, Topics, consume, embedded, produce

_LIMIT = 300.0
# The JVM's warning about an archive that does not fit would land among a driver's events on stdout.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
_DUMP = "TAILRACE_TESTS_ARCHIVE"  # where the broker of the training writes its archive


def spark() -> Path:
    """Return the path of Spark's archive for this JVM and these jars, whether or not it exists."""
    return _place("classes", Path(pyspark.__file__).parent.glob("jars/*.jar"))


def kafka() -> Path:
    """Return the path of the embedded Kafka's archive, whether or not it exists."""
    return _place("kafka", jars.ensure("kafka"))


def _place(name: str, files: Iterable[Path]) -> Path:
    version = subprocess.run([jars.java(), "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    key = hashlib.sha256("\n".join([version, *sorted(map(str, files))]).encode()).hexdigest()[:12]
    return jars.folder().parent / f"{name}-{key}.jsa"


def use() -> None:
    """Let what is started from now on use the archives: sessions also of child processes, brokers of this one."""
    archive = spark()
    if archive.is_file() and "SPARK_SUBMIT_OPTS" not in os.environ:
        # Runs are short: they end before the JVM's second compiler pays off.
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={archive} -XX:TieredStopAtLevel=1 {' '.join(_QUIET)}"
    archive = kafka()
    if archive.is_file():
        embedded.JVM_FLAGS = (*embedded.JVM_FLAGS, f"-XX:SharedArchiveFile={archive}", *_QUIET)


def make() -> None:
    """Create the missing archives, each by running a little of everything."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    for name, archive in {"spark": spark(), "kafka": kafka()}.items():
        if archive.is_file():
            continue
        try:
            archive.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=archive.parent) as folder:  # a JVM that writes too late finds it gone
                draft = Path(folder, archive.name)
                options = " ".join([f"-XX:ArchiveClassesAtExit={draft}", *_QUIET])
                environment = os.environ | python | {"SPARK_SUBMIT_OPTS": options, _DUMP: str(draft)}
                subprocess.run([sys.executable, __file__, name], env=environment, check=True, timeout=_LIMIT)
                draft.replace(archive)
        except (OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"no archive of {name}'s classes ({error}): the tests start more slowly\n")


def _train_spark() -> None:
    """Do what the sessions of tests do: SQL with a shuffle, and Arrow in Python."""
    settings = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    settings["spark.ui.showConsoleProgress"] = "false"
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")

    def same(batches: Iterator[object]) -> Iterator[object]:
        yield from batches

    rows = session.range(1000).selectExpr("id % 7 as k", "encode(cast(id as string), 'utf-8') as v").repartition(2)
    rows.groupBy("k").count().collect()
    rows.mapInArrow(same, "k long, v binary").selectExpr("to_json(struct(*)) as v").collect()
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is not None and gateway.proc is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM exits in order, and writes the archive
        gateway.proc.wait(_LIMIT)


def _train_kafka() -> None:
    """Start a broker in a formatted folder, because formatting is a JVM too; write, read and commit a little."""
    with tempfile.TemporaryDirectory() as folder:
        options = embedded.EmbeddedOptions(folder=Path(folder, "kafka"))
        with embedded.EmbeddedKafka(options):
            pass
        embedded.JVM_FLAGS = (*embedded.JVM_FLAGS, f"-XX:ArchiveClassesAtExit={os.environ[_DUMP]}", *_QUIET)
        with embedded.EmbeddedKafka(options) as broker:
            bootstrap = broker.bootstrap_servers
            topic = Topics(bootstrap)("in", 2)
            produce(bootstrap, topic, [Record(b"%d" % number) for number in range(1000)])
            producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce(topic, b"last")
            producer.commit_transaction(60)
            consume(bootstrap, topic)
        # The folder has no temporary name, so the broker has stopped in order, and has written the archive.


if __name__ == "__main__":
    {"spark": _train_spark, "kafka": _train_kafka}[sys.argv[1]]()
