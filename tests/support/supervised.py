"""A pipeline that is started again whenever it ends, as the kubelet would, and what came out of it in the end."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import yaml

from support.drivers import Load, command, count, events, kill_tree
from support.pipelines import QUIET
from tailrace.config import Kafka
from tailrace.kafka import Cluster
from tailrace.oracle import Comparison, compare
from tailrace.reader import Message, read
from tailrace.testing import Topics, wait_until

LIMIT = 240.0
_BACK_OFF = 0.5


@dataclass(frozen=True)
class Proof:
    """What an independent reader found."""

    compared: Comparison
    reordered: int

    @property
    def exact(self) -> bool:
        """Nothing lost, nothing twice, nothing out of its order."""
        return self.compared.exact and not self.reordered


def order_of(inputs: list[Message], outputs: list[Message]) -> int:
    """How many records stand behind one that the same source partition had after them."""
    places = {each.key: (each.partition, each.offset) for each in inputs}
    reached: dict[tuple[int, int], int] = {}
    wrong = 0
    for each in outputs:
        source, offset = places.get(each.key, (-1, -1))
        if offset < reached.get((source, each.partition), -1):
            wrong += 1
        reached[source, each.partition] = max(offset, reached.get((source, each.partition), -1))
    return wrong


@dataclass
class Supervised:
    """One pipeline, its driver as a process; it takes the way of `servers`, and its proof that of `direct`."""

    servers: str
    direct: str
    folder: Path
    partitions: int = 4
    spark: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    again: bool = True  # a driver that has ended is started again
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
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._logs: list[Path] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._process is not None:
            kill_tree(self._process.pid)
        self._thread.join(30)

    def _keep(self) -> None:
        while not self._stop.is_set():
            log = self.folder / f"run-{len(self._logs)}"
            with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
                self._process = subprocess.Popen(
                    command(self.file, "--output", "json"), stdout=out, stderr=err, start_new_session=True
                )
                self._logs.append(log)
            self.codes.append(self._process.wait())
            if not self.again or self._stop.wait(_BACK_OFF):
                return

    # -- looking ---------------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """Of all runs so far."""
        return [each for log in list(self._logs) if log.exists() for each in events(log)]

    def count(self, kind: str) -> int:
        """How many events of a kind there have been."""
        return sum(count(log, kind) for log in list(self._logs) if log.exists())

    def said(self) -> str:
        """The end of what the runs have said of their failures."""
        return "\n".join(log.with_suffix(".err").read_text()[-1500:] for log in self._logs)

    def more(self, kind: str = "written", number: int = 1, limit: float = LIMIT) -> None:
        """Wait until there are so many more events of a kind than now."""
        wanted = self.count(kind) + number
        try:
            wait_until(lambda: self.count(kind) >= wanted, f"{number} more events {kind!r}", limit)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; codes {self.codes}; {self.said()}") from error

    def driver(self) -> psutil.Process:
        """The driver that runs now."""
        process = wait_until(lambda: self._process, "the driver's process", LIMIT)
        return psutil.Process(process.pid)

    def tree(self, *words: str) -> list[psutil.Process]:
        """What the driver has started, of whose command line all the words are a part."""
        return [each for each in self.driver().children(recursive=True) if all(w in _line(each) for w in words)]

    # -- the end ---------------------------------------------------------------------------------

    def drained(self, load: Load, limit: float = LIMIT) -> None:
        """Wait until as many records have come out as went in; the load has stopped."""
        cluster = Cluster(Kafka(bootstrap_servers=self.direct))
        places = [(self.source, number) for number in range(self.partitions)]

        def all_read() -> bool:
            last = [each for each in self.events() if each["event"] in {"written", "idle"}]
            return bool(last) and last[-1]["lag"] == 0 and sum(cluster.latest(places).values()) == load.sent

        try:
            wait_until(all_read, "the pipeline to have read everything", limit, every=0.2)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; codes {self.codes}; {self.said()}") from error

    def proof(self) -> Proof:
        """Read both topics, and compare."""
        kafka = Kafka(bootstrap_servers=self.direct)
        cluster, places = Cluster(kafka), [(self.sink, number) for number in range(2)]
        wait_until(lambda: cluster.latest(places) == cluster.latest(places, committed=True), "open transactions", 10)
        inputs, outputs = list(read(kafka, self.source)), list(read(kafka, self.sink))
        compared = compare((each.key for each in inputs), (each.key for each in outputs))
        return Proof(compared, order_of(inputs, outputs))


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
