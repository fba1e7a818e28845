"""The gateway process: one on each executor, it owns every Kafka connection there.

It is started by the executor's Python daemon, or by the first task that finds none, and lives as long as the executor's
JVM. Each task has a connection and a thread of its own. Whatever a task has begun and not completed is aborted, so the
death of a worker leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from confluent_kafka import KafkaException

from tailrace import crash_points, errors
from tailrace.crash_points import Point
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway import message_protocol as wire
from tailrace.gateway.attempts import Attempt, Attempts
from tailrace.gateway.counting import Counting
from tailrace.gateway.legible import legible
from tailrace.gateway.schemas import RECORDS, completed
from tailrace.gateway.statistics import Statistics
from tailrace.gateway.writing import Deliveries
from tailrace.kafka.clients import within
from tailrace.signals import on_signals
from tailrace.telemetry import metrics
from tailrace.telemetry.gateway_settings import Watched
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.serving import Port, scraped
from tailrace.telemetry.vitals import Watch
from tailrace.version import VERSION

log = logging.getLogger("tailrace.gateway")

_TEND_EVERY = 0.5
_CLOSE_LIMIT = 30.0  # seconds for freeing all clients; each aborts its open transaction within five
_BACKLOG = 512


class Host:
    """Listens in a folder, and serves one task on each connection."""

    def __init__(self, folder: Path, watched: Watched | None = None) -> None:
        self.folder = folder
        self.name = uuid.uuid4().hex[:12]
        self.measures = Measures(metrics.EXECUTOR + metrics.BOTH)
        self.counting = Counting(self.measures)
        self._watched = watched
        self._watch: Watch | None = None
        every = watched.statistics if watched is not None else 0.0
        statistics = Statistics(self.measures, every) if every else None
        if statistics is not None:
            self.measures.before(statistics.look)
        self.attempts = Attempts(folder)
        self.deliveries = Deliveries(self.name, self.counting, statistics, self.attempts)
        self.measures.before(lambda: self.counting.look(self.deliveries.caches()))
        self._stop = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def serve(self, executor: psutil.Process) -> None:
        """Serve until the executor ends or `stop` is called."""
        path = self.folder / wire.SOCKET
        path.unlink(missing_ok=True)  # left by a gateway that was killed; the lock shows that it is gone
        self._socket.bind(str(path))
        self._socket.listen(_BACKLOG)
        port = self._watch_over(executor)
        for each in (self._accept, self._tend):
            threading.Thread(target=each, name=each.__name__.strip("_"), daemon=True).start()
        while not self._stop.wait(_TEND_EVERY) and _lives(executor):
            pass  # nothing that may block or fail: the gateway would outlive its executor, or end before it
        self.stop()
        if port is not None:
            port.close()
        path.unlink(missing_ok=True)
        self._socket.close()
        try:
            within(_CLOSE_LIMIT, "freeing the gateway's clients", self._close)
        except KafkaException as error:
            log.warning("%s; they end with this process", error.args[0].str())

    def _tend(self) -> None:
        """Do the housekeeping; freeing a client may block for ever in librdkafka (its issue 5434)."""
        tends = [cache.tend for cache in self.deliveries.caches().values()]
        while not self._stop.wait(_TEND_EVERY):
            for step in (*tends, self.attempts.sweep, self.counting.sample):
                try:
                    step()
                except Exception:
                    log.exception("the gateway's housekeeping failed; it is tried again in %g s", _TEND_EVERY)

    def _close(self) -> None:
        for cache in self.deliveries.caches().values():
            cache.close()

    def _watch_over(self, executor: psutil.Process) -> Port | None:
        """Serve the metrics, if they are configured; without a free port the gateway still writes."""
        if self._watched is None:
            return None
        self._watch = Watch(self.measures, self._watched.pipeline, "gateway", "executor-jvm", executor.pid)
        self._watch.start()
        self.measures.begin_all(self._watched.pipeline)
        self.measures.set(metrics.GATEWAY_INFO, self._watched.pipeline, self.name, VERSION, value=1)
        self.measures.set(metrics.GATEWAY_STARTED, self._watched.pipeline, value=time.time())
        try:
            port = Port(
                self._watched.host, self._watched.port, {"/metrics": scraped(self.measures, self._watched.pipeline)}
            )
        except errors.PortUnusable as error:
            log.warning("this gateway's metrics are not served: %s", error)
            return None
        self.deliveries.address = port.address
        log.info("gateway %s serves its metrics at %s", self.name, port.address)
        return port

    def stop(self) -> None:
        """End `serve`."""
        self._stop.set()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed by `serve`
                return
            threading.Thread(target=self._task, args=[connection], name="task", daemon=True).start()

    def _task(self, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # the worker died; what was buffered for it is of no use
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb", wire.BUFFER) as incoming, connection.makefile("wb") as outgoing:
            try:
                connection.sendall(wire.HELLO)
                asked = wire.receive(incoming)
                if isinstance(asked, wire.Reading):
                    with self.attempts.held(asked.attempt) if asked.attempt else contextlib.nullcontext() as attempt:
                        self._read(asked, attempt, incoming, outgoing)
                    return
                answer = self._answer(asked, incoming)
            except (wire.Closed, ConnectionError):
                return  # the worker died or gave up; what it had begun is aborted
            except errors.TailraceError as error:
                answer = error
            except Exception as error:
                log.exception("a task failed")
                answer = errors.InvariantBroken(f"the gateway failed: {type(error).__name__}: {error}")
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # a worker that is still sending reads the answer instead
                wire.send(outgoing, answer)
                outgoing.flush()
            answer = None  # an error's traceback has this frame, and would hold a producer that was given up

    def _answer(self, asked: Any, incoming: wire.Stream) -> Any:
        if asked == wire.STATS:
            return self.stats()
        if isinstance(asked, wire.Judging):
            with self.attempts.held(asked.attempt) as attempt:
                for batch in _rows(incoming):
                    attempt.aside.add(batch)
                crash_points.at(Point.ASIDE_GIVEN, asked.batch, asked.part)
                attempt.judged |= asked.whole
                crash_points.at(Point.ASIDE_NOTED, asked.batch, asked.part)
            return None
        if not isinstance(asked, Assignment):
            raise errors.InvariantBroken(f"the gateway got an unknown request: {type(asked).__name__}")
        if asked.vitals is not None and self._watch is not None:
            self._watch.heard(asked.vitals)
        with self.counting.task(asked.pipeline):
            return self.deliveries.write(asked, _rows(incoming))

    def _read(self, asked: wire.Reading, attempt: Attempt | None, incoming: wire.Stream, outgoing: wire.Stream) -> None:
        """Stream the ranges to the worker, then what was read; note the attempt once the worker has taken it all."""
        done, answer = ReadDone(), None
        batches = self.deliveries.read(asked.request, done)
        schema = pa.schema([RECORDS.field(name) for name in asked.request.columns])
        with pa.ipc.new_stream(outgoing, schema) as stream:
            try:
                for batch in batches:
                    stream.write_batch(batch)
                    crash_points.at(Point.READ_IN_PART, asked.batch, asked.part, outgoing.flush)
            except errors.TailraceError as error:
                answer = error.with_traceback(None)
            except OSError as error:
                batches.close()
                raise wire.Closed from error
            except Exception as error:
                log.exception("reading failed")
                answer = errors.InvariantBroken(f"the gateway failed: {type(error).__name__}: {error}")
        wire.send(outgoing, answer or done)
        outgoing.flush()
        if answer is None and wire.take(incoming, 1) == wire.READ:
            crash_points.at(Point.READ_WHOLE, asked.batch, asked.part)
            if attempt is not None:
                attempt.read = done
            outgoing.write(wire.READ)  # from here on the attempt may commit
            outgoing.flush()

    def stats(self) -> dict[str, Any]:
        """Return what this process holds and has done."""
        me = psutil.Process()
        return {
            "gateway": self.name,
            "pid": me.pid,
            "rss": me.memory_info().rss,
            "threads": me.num_threads(),
            "connections": len(me.net_connections(kind="inet")),
            "metrics": self.deliveries.address,
            **{kind: dataclasses.asdict(cache.counts) for kind, cache in self.deliveries.caches().items()},
        }


def _rows(incoming: wire.Stream) -> Iterator[Any]:
    """Yield the task's batches; raise Closed if they end without the byte COMPLETE."""
    if wire.take(incoming, 1) == wire.ROWS:
        try:
            with pa.ipc.open_stream(incoming) as stream:
                yield from map(legible, map(completed, stream))
        except (pa.ArrowInvalid, OSError) as error:  # truncated inside a batch
            raise wire.Closed from error
    if wire.take(incoming, 1) != wire.COMPLETE:
        raise wire.Closed


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class WithoutPandas(MetaPathFinder):
    """Keeps pyarrow from importing pandas with its first array: seconds of CPU for what this process never uses."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Raise ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the gateway does not use pandas", name=fullname)


def main(folder: Path, pid: int) -> int:
    """Serve in this folder for the executor with this process id, unless another gateway already does."""
    os.umask(0o077)
    sys.meta_path.insert(0, WithoutPandas())
    # Ctrl-C and the daemon's SIGHUP go to the entire process group; the gateway ends after its tasks.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.INFO if "TAILRACE_LOG" in os.environ else logging.WARNING,
        format="%(asctime)s %(levelname)s gateway: %(message)s",
    )
    with (wire.own(folder) / wire.LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        try:
            executor = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return 0
        host = Host(folder, Watched.here())
        on_signals(lambda _: host.stop(), numbers=(signal.SIGTERM,))
        gc.collect()
        gc.freeze()
        host.serve(executor)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
