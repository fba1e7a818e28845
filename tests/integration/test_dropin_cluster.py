"""`exactly_once` with executors of their own, on whose hosts Spark's plan may depend."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.pipelines import Bench
from tailrace.testing import Record, produce

_LIMIT = 300  # seconds; beside three other tests, an executor may need a minute to start
pytestmark = [pytest.mark.integration, pytest.mark.timeout(_LIMIT + 60)]

MakeBench = Callable[..., Bench]
ROWS = 60
PROGRAM = """
import json
import os
import sys

from pyspark.sql import SparkSession

import tailrace
from tailrace import jars

kafka, source, folder, sinks = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "512m")
builder = builder.config("spark.jars", ",".join(map(str, jars.ensure("spark"))))
spark = builder.config("spark.sql.adaptive.enabled", "false").getOrCreate()
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", source)
rows = reader.option("startingOffsets", "earliest").load().select("value")
for tasks, topic in json.loads(sinks).items():
    given = {"kafka.bootstrap.servers": kafka, "topic": topic, "id": topic, "ledger.topic": f"{topic}.ledger"}
    writer = rows.coalesce(int(tasks)).writeStream.foreachBatch(tailrace.exactly_once(**given))
    writer = writer.option("checkpointLocation", f"{folder}/{tasks}").trigger(availableNow=True)
    try:
        writer.start().awaitTermination()
        print(tasks, "delivered", flush=True)
    except Exception as error:
        print(tasks, str(error).replace("\\n", " "), flush=True)
spark.stop()
"""


def test_tasks_on_executors_are_not_merged_by_their_hosts(bench: MakeBench) -> None:
    """After a restart the executors are elsewhere, and a batch that was begun would never be cut like that again."""
    one = bench(partitions=6)
    produce(one.kafka, one.source, [Record(b"%d" % n, partition=n % 6) for n in range(ROWS)])
    sinks = {tasks: one.topics() for tasks in ("4", "1", "6")}
    given = [sys.executable, "-c", PROGRAM, one.kafka, one.source, str(one.folder / "checkpoints"), json.dumps(sinks)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=_LIMIT, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(said) == {"4", "1", "6"}, done.stderr[-3000:]
    assert "TR-103" in said["4"]
    assert "merges tasks that read Kafka by the executors' hosts" in said["4"]
    assert [said["1"], said["6"]] == ["delivered", "delivered"]
