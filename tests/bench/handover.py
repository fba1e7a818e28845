"""The output gap of a driver hand-over: `tests/bench/handover.py [term] [kill]`.

Under a steady load, a driver with a standby gets SIGTERM, or is killed with all processes that it started. The gap is
the time between the old driver's last output record and the new one's first, by the broker's clock
(message.timestamp.type=LogAppendTime). At the end every record must have come out once. Run it from the repository:

    PYTHONPATH=tests .venv/bin/python tests/bench/handover.py term kill term
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from support.drivers import Load, count, driver, events, kill_tree
from tailrace.admin.verify import verify
from tailrace.cli.terminal import say
from tailrace.config import Kafka
from tailrace.kafka.reader import Identity, read
from tailrace.testing import Topics, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

RATE = 500.0
PARTITIONS = 4
LIMIT = 180.0
FUNCTION = """
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

def same(frame):
    return frame.select(F.col("kafka.key").alias("key"), F.udf(bytes, BinaryType())("value").alias("value"))
"""


def pipeline(folder: Path, kafka: str, source: str, sink: str, number: int) -> Path:
    """Write the configuration of a pipeline with a Python function."""
    (folder / "same.py").write_text(FUNCTION)
    file = folder / "pipeline.yaml"
    configuration = {
        "pipeline": f"handover-{number}",
        "kafka": {"bootstrap.servers": kafka},
        "source": {"topics": [source]},
        "process": {"function": "same.py:same"},
        "sink": {"topic": sink, "format": "raw"},
        "spark": {"spark.master": "local[2,4]", "spark.ui.enabled": "false"},
    }
    file.write_text(yaml.safe_dump(configuration))
    return file


def alive(process: subprocess.Popen[bytes], log: Path) -> None:
    """Raise RuntimeError if the driver has ended by itself."""
    if process.poll() is not None:
        raise RuntimeError(f"{log.name} ended with {process.returncode}:\n{log.with_suffix('.err').read_text()}")


def at_least(log: Path, process: subprocess.Popen[bytes], kind: str, number: int) -> None:
    """Wait until the log holds at least `number` events of a kind."""

    def reached() -> bool:
        alive(process, log)
        return count(log, kind) >= number

    wait_until(reached, f"{number} events {kind!r} in {log.name}", LIMIT)


def measure(kafka: str, topics: Topics, how: str, number: int) -> None:
    """Measure one hand-over, and print a line about it."""
    source, sink = topics("in", PARTITIONS), topics("out", 1, **{"message.timestamp.type": "LogAppendTime"})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = pipeline(folder, kafka, source, sink, number)
        logs = folder / "old", folder / "new"
        with Load(kafka, source, RATE) as load, driver(file, logs[0]) as old:
            at_least(logs[0], old, "written", 5)
            with driver(file, logs[1], "--standby") as new:
                at_least(logs[1], new, "standby", 1)
                at_least(logs[0], old, "written", count(logs[0], "written") + 2)
                asked = time.time()
                if how == "term":
                    old.send_signal(signal.SIGTERM)
                    wait_until(lambda: count(logs[0], "stopped"), "the old driver to stop", LIMIT, every=0.005)
                else:
                    kill_tree(old)
                left = time.time()
                at_least(logs[1], new, "written", 3)
                load.stop()
                at_least(logs[1], new, "idle", 1)
                code = old.wait(LIMIT)
        stamps = sorted((each.timestamp or 0) / 1000 for each in read(Kafka(bootstrap_servers=kafka), sink))
        last = max(stamp for stamp in stamps if stamp <= left)
        first = min(stamp for stamp in stamps if stamp > left)
        proof = verify(Kafka(bootstrap_servers=kafka), source, sink, Identity.parse("key"))
        steps = [each for each in events(logs[1]) if each["event"] in {"started", "planned", "written"}][:3]
        say(
            f"{how}: gap {first - last:.2f} s; the old driver wrote for another {last - asked:.2f} s and stopped after "
            f"{left - asked:.2f} s (exit {code}), the new one wrote {first - left:.2f} s after that; "
            f"{load.sent} records, {proof}; first batch {steps[-1].get('seconds')} s",
        )


def main(ways: list[str]) -> None:
    """Measure each way in turn, on one broker."""
    with EmbeddedKafka(EmbeddedOptions()) as kafka:
        for number, how in enumerate(ways or ["term", "kill"]):
            measure(kafka.bootstrap_servers, Topics(kafka.bootstrap_servers), how, number)


if __name__ == "__main__":
    main(sys.argv[1:])
