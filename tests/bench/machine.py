"""The machine and the versions that a benchmark ran with, without host names or paths."""

from __future__ import annotations

import os
import platform
import re
import subprocess

import confluent_kafka
import psutil
import pyarrow
import pyspark

from tailrace import jars

JAVA_LIMIT = 60.0


def machine() -> dict[str, str]:
    """Describe the machine, by name for a table."""
    answer = subprocess.run(
        [str(jars.java()), "-version"], capture_output=True, text=True, check=True, timeout=JAVA_LIMIT
    )
    java = re.search(r'version "([^"]+)"', answer.stderr)
    broker = next(
        (found[1] for each in jars.ensure("kafka") if (found := re.match(r"kafka_2\.13-(.+)\.jar", each.name))), ""
    )
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Java": java[1] if java else "",
        "PySpark": pyspark.__version__,
        "PyArrow": pyarrow.__version__,
        "Kafka broker": broker,
        "librdkafka": confluent_kafka.libversion()[0],
    }


def table(versions: dict[str, str]) -> str:
    """Return the description as a Markdown table."""
    return "\n".join(
        ["| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in versions.items() if value)]
    )
