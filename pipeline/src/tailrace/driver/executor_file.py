"""The number of executors from a file, so that it can change while a driver runs: by hand, GitOps or `kubectl scale`.

The chart mounts a ConfigMap there, which Kubernetes rewrites in place. A file that is missing or holds no number
changes nothing: the number that was read last stays.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.config import Pipeline
from tailrace.driver.scaling import SPARKS_OWN

MOST = 1000  # as the chart allows
INSTANCES = "spark.executor.instances"


def instances(pipeline: Pipeline) -> int:
    """Return the number of executors to start with."""
    asked = read(pipeline)
    return asked if asked is not None else int(pipeline.spark.get(INSTANCES, str(SPARKS_OWN)))


def read(pipeline: Pipeline) -> int | None:
    """Return the number in the pipeline's file; None without a file, or without a valid number in it."""
    if pipeline.executors.file is None:
        return None
    try:
        asked = int(Path(pipeline.executors.file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return asked if 1 <= asked <= MOST else None
