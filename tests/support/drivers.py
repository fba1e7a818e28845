"""Drivers as separate processes, killed as Kubernetes or a person would, and a steady load for them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka import Producer

from support.pipelines import Bench


def written_file(one: Bench, **sections: Any) -> Path:
    """Write the pipeline's configuration to a file."""
    data = one.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    file = one.folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def command(file: Path, *more: str) -> list[str]:
    """Return the command line as a shell would start it."""
    return [sys.executable, "-m", "tailrace.cli.main", "run", str(file), *more]


@contextmanager
def driver(file: Path, log: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver with its events in a file; kill its process tree at the end, whatever happens."""
    with log.open("wb") as out, (log.with_suffix(".err")).open("wb") as err:
        process = subprocess.Popen(
            command(file, "--output", "json", *more), stdout=out, stderr=err, start_new_session=True
        )
    try:
        yield process
    finally:
        kill_tree(process)
        process.wait(30)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants at once, unless it has ended: then its pid may have been reused."""
    if process.poll() is not None:
        return
    try:
        parent = psutil.Process(process.pid)
        parent.suspend()
        tree = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for each in tree:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def events(log: Path) -> list[dict[str, Any]]:
    """Return the events so far, without a line that is still being written."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def count(log: Path, kind: str) -> int:
    """Count the events of a kind."""
    return sum(each.get("event") == kind for each in events(log))


class Load:
    """Numbered records with equal key and value, at a steady rate over all partitions, while the context is open."""

    def __init__(self, kafka: str, topic: str, rate: float) -> None:
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 5})
        self._topic = topic
        self._rate = rate
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self.sent = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, and return once the last record is acknowledged."""
        self._end.set()
        self._thread.join(60)
        if self._producer.flush(60):
            raise TimeoutError(f"{len(self._producer)} records were not acknowledged within 60 s")

    def _feed(self) -> None:
        began = time.monotonic()
        while not self._end.wait(0.02):
            for number in range(self.sent, int((time.monotonic() - began) * self._rate)):
                name = b"%09d" % number
                self._producer.produce(self._topic, name, name)
                self.sent = number + 1
            self._producer.poll(0)
