"""A harness for the gateway without Spark: this process is the executor, and its threads are the tasks.

Starting Spark takes ten seconds, starting the gateway half a second. The steps of a transaction belong to the gateway,
so they can be struck hundreds of times here; what Spark adds is struck in `faults.driven`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil
import pyarrow as pa

from faults.checker import Cut
from faults.proof import Proof, prove
from faults.reading import Watching, watching
from faults.records import Fed, arrow
from faults.scenario import Context
from tailrace import crash_points, errors
from tailrace.config import Delivery, Kafka
from tailrace.gateway import Assignment, Written
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.client import Client
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.testing import wait_until

ATTEMPTS = 4  # as in Spark's settings
CHUNK = 10_000  # rows of an Arrow batch, as Spark makes them
OUTPUTS = 4


class House:
    """One pipeline's sink partitions, a gateway that can be killed, and readers."""

    def __init__(self, context: Context, rows: int, sinks: int, watch: Watching, name: str, out: str) -> None:
        self.name, self.sinks, self.rows = name, sinks, rows
        self.bootstrap = context.bootstrap
        self.sink = out
        self.rejected = context.topic("rejected")
        self.ledger = f"{name}.ledger"
        Cluster(Kafka(bootstrap_servers=self.bootstrap)).ensure(self.ledger, sinks, -1, LEDGER_SETTINGS)
        self.batches = 0
        self._watch = watch
        self._options = client_options(Kafka(bootstrap_servers=self.bootstrap))
        self._starting = threading.Lock()

    def task(self, batch: int, partition: int, run: str = "run") -> Assignment:
        """Return the assignment of one task of a batch."""
        return Assignment(
            pipeline=self.name,
            batch=BatchId(batch),
            partition=SinkPartition(partition),
            sinks=self.sinks,
            digest=f"digest of {batch}",
            delivery=Delivery.EXACTLY_ONCE,
            ledger=self.ledger,
            topic=self.sink,
            rejected=self.rejected,
            run=run,
            options=self._options,
        )

    def batch(self, run: str = "run", number: int | None = None) -> list[Written]:
        """Write the next batch, or this one again, with a thread for each sink partition."""
        chosen = self.batches if number is None else number
        with ThreadPoolExecutor(self.sinks) as threads:
            asked = [threads.submit(self._attempts, chosen, partition, run) for partition in range(self.sinks)]
            written = [each.result(300) for each in asked]
        self.batches = max(self.batches, chosen + 1)
        return written

    def _attempts(self, batch: int, partition: int, run: str) -> Written:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return Client().write(self.task(batch, partition, run), self._batches(batch, partition))
            except errors.TailraceError:
                if attempt == ATTEMPTS:
                    raise
                # One thread restarts the dead gateway while the others wait. Otherwise each would start one and all
                # but one would be thrown away, which would take most of the campaign's time.
                with self._starting:
                    self.pid()
        raise AssertionError

    def _batches(self, batch: int, partition: int) -> Iterator[pa.RecordBatch]:
        rows = arrow(partition, batch * self.rows, (batch + 1) * self.rows)
        for start in range(0, self.rows, CHUNK):
            yield rows.slice(start, CHUNK)

    def pid(self) -> int:
        """Return the gateway's process id, starting the gateway if it is gone."""
        return int(Client().stats()["pid"])

    def cuts(self) -> list[Cut]:
        """Return the content of each transaction."""
        return [
            Cut(batch, partition, ((partition, batch * self.rows, (batch + 1) * self.rows),))
            for batch in range(self.batches)
            for partition in range(self.sinks)
        ]

    def prove(self) -> Proof:
        """Compare everything at the end."""
        fed = Fed(dict.fromkeys(range(self.sinks), self.batches * self.rows))
        return prove(
            self.bootstrap, self.name, fed, self.sink, self.rejected, self._watch.finish(),
            ledger=self.ledger, last=self.batches - 1, sinks=self.sinks,
        )  # fmt: skip


@contextmanager
def house(
    context: Context, rows: int, sinks: int = 4, crashes: Sequence[crash_points.Crash] = (), marks: Path | None = None
) -> Iterator[House]:
    """Make this process an executor whose gateway will meet these crashes."""
    name = f"direct-{uuid.uuid4().hex[:8]}"
    out = context.topic("out", OUTPUTS)
    folder = wire.folder_of(psutil.Process()).with_name(name)
    environment = {wire.ENV: str(folder)}
    if crashes:
        environment |= crash_points.crashes(marks or context.folder / "crashes", *crashes)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(patch.object(wire, "executor", psutil.Process))
        watch = stack.enter_context(watching(context.bootstrap, out))
        stack.callback(_end_gateway, folder)
        yield House(context, rows, sinks, watch, name, out)


def _end_gateway(folder: Path) -> None:
    if folder.exists():
        os.kill(int(Client().stats()["pid"]), signal.SIGTERM)
        wait_until(lambda: not folder.exists(), "the gateway's folder to be gone", 30)


def killing(pid: int, after: float, number: signal.Signals = signal.SIGKILL) -> Callable[[], bool]:
    """Kill a process after a delay; the returned function waits for that and tells whether the process still ran."""
    done: list[bool] = []

    def kill() -> None:
        time.sleep(after)
        try:
            os.kill(pid, number)
            done.append(True)
        except ProcessLookupError:
            done.append(False)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()

    def wait() -> bool:
        thread.join(after + 30)
        return bool(done and done[0])

    return wait
