"""A pipeline that is restarted whenever it ends, as the kubelet would, and the proof of what finally came out of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import psutil
import yaml
from confluent_kafka import Consumer, TopicPartition

from support.drivers import command, count, events, kill_tree
from support.pipelines import QUIET
from tailrace.admin.verify import Comparison, compare
from tailrace.config import Kafka
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reader import Message, read
from tailrace.progress.marker import offsets_group
from tailrace.testing import Topics, wait_until

LIMIT = 240.0
_BACK_OFF = 0.5


@dataclass(frozen=True)
class Proof:
    """What an independent reader found."""

    compared: Comparison
    reordered: int


def order_of(inputs: list[Message], outputs: list[Message]) -> int:
    """Count the records that come after a later one of the same source partition."""
    places = {each.key: (each.partition, each.offset) for each in inputs}
    reached: dict[tuple[int, int], int] = {}
    wrong = 0
    for each in outputs:
        source, offset = places.get(each.key, (-1, -1))
        if offset < reached.get((source, each.partition), -1):
            wrong += 1
        reached[source, each.partition] = max(offset, reached.get((source, each.partition), -1))
    return wrong


@dataclass(frozen=True)
class Run:
    """One driver process."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Return what it reported about its failures."""
        return self.log.with_suffix(".err").read_text() + "".join(
            json.dumps(each) for each in events(self.log) if "error" in each
        )

    def more(self, kind: str = "written", number: int = 1, limit: float = LIMIT) -> None:
        """Wait until it has reported this many more events of a kind."""
        wanted = count(self.log, kind) + number
        wait_until(lambda: count(self.log, kind) >= wanted, f"{number} more {kind!r} of {self.log.name}", limit)


class Sending(Protocol):
    """What writes a pipeline's input."""

    @property
    def sent(self) -> int:
        """The number of records that it has written."""


@dataclass
class Supervised:
    """One pipeline with its driver as a process; the driver connects to `servers`, the proof to `direct`."""

    servers: str
    direct: str
    folder: Path
    partitions: int = 4
    spark: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    again: bool = True  # restart a driver that has ended
    name: str = field(default_factory=lambda: f"s-{uuid.uuid4().hex[:8]}")
    codes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        topics = Topics(self.direct)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.source, self.sink = topics("in", self.partitions), topics("out", 2)
        self.file = self.folder / "pipeline.yaml"
        base: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.servers},
            "source": {"topics": [self.source]},
            "sink": {"topic": self.sink, "format": "raw"},
            "ledger": {"topic": f"{self.name}.ledger", "partitions": 8},
            "spark": QUIET | {"spark.master": "local[2,4]"} | dict(self.spark),
        }
        for key, value in self.sections.items():
            base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
        self.file.write_text(yaml.safe_dump(base))
        self._stop = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self.runs: list[Run] = []

    def __enter__(self) -> Self:
        if self.again:
            self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for run in self.runs:
            kill_tree(run.process)
            run.process.wait(30)

    def start(self) -> Run:
        """Start a driver, whether or not others are running."""
        log = self.folder / f"run-{len(self.runs)}"
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                command(self.file, "--output", "json"), stdout=out, stderr=err, start_new_session=True,
                env=os.environ | self.environment,
            )  # fmt: skip
        self.runs.append(Run(process, log))
        return self.runs[-1]

    def _keep(self) -> None:
        while not self._stop.is_set():
            self.codes.append(self.start().process.wait())
            if self._stop.wait(_BACK_OFF):
                return

    # -- observing -------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """Return the events of all runs so far."""
        return [each for run in list(self.runs) for each in events(run.log)]

    def count(self, kind: str) -> int:
        """Count the events of a kind in all runs so far."""
        return sum(count(run.log, kind) for run in list(self.runs))

    def said(self) -> str:
        """Return the end of what each run reported about its failures."""
        return "\n".join(run.said()[-1500:] for run in list(self.runs))

    def more(self, kind: str = "written", number: int = 1, limit: float = LIMIT) -> None:
        """Wait until there are this many more events of a kind than now."""
        wanted = self.count(kind) + number
        self._wait(lambda: self.count(kind) >= wanted, f"{number} more events {kind!r}", limit)

    def _wait(self, condition: Callable[[], bool], what: str, limit: float) -> None:
        try:
            wait_until(condition, what, limit, every=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; codes {self.codes}; {self.said()}") from error

    def tree(self, *words: str) -> list[psutil.Process]:
        """Return the descendants of the last driver whose command line contains all these words."""
        found = psutil.Process(self.runs[-1].process.pid).children(recursive=True)
        return [each for each in found if all(word in _line(each) for word in words)]

    # -- the end ---------------------------------------------------------------------------------

    def drained(self, load: Sending, limit: float = LIMIT) -> None:
        """Wait until everything that the load has written is delivered; the load must have stopped.

        The pipeline's group shows it: it holds the offsets of finished batches. The lag in an event is that of the look
        before the batch, so the next batch may be in progress.
        """
        cluster = Cluster(Kafka(bootstrap_servers=self.direct))
        places = [(self.source, number) for number in range(self.partitions)]
        group = Consumer({"bootstrap.servers": self.direct, "group.id": offsets_group(self.name)})
        asked = [TopicPartition(*place) for place in places]

        def all_done() -> bool:
            done = sum(max(0, each.offset) for each in group.committed(asked, timeout=30))
            return done == load.sent == sum(cluster.latest(places).values())

        try:
            self._wait(all_done, f"the pipeline to have delivered {load.sent} records", limit)
        finally:
            group.close()

    def proof(self) -> Proof:
        """Read both topics and compare them."""
        kafka = Kafka(bootstrap_servers=self.direct)
        inputs, outputs = list(read(kafka, self.source)), list(read(kafka, self.sink))
        compared = compare((each.key for each in inputs), (each.key for each in outputs))
        return Proof(compared, order_of(inputs, outputs))


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
