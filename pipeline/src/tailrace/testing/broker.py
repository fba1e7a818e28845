"""One broker of the embedded Kafka and its process, which can be stopped, killed and paused on its own.

Every broker's JVM is the child of a small watcher in its own session: Ctrl-C in the parent's terminal does not reach
it. When the parent ends, for whatever reason, the watcher's standard input closes, and the watcher ends the broker. The
kernel's parent-death signal would not do: it is sent when the *thread* that started the child ends.
"""

from __future__ import annotations

import base64
import ctypes
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.errors import BrokerDidNotStart, InvariantBroken

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

HOST = "127.0.0.1"
START_LIMIT = 60.0
STOP_LIMIT = 30.0
_PROPERTIES = "meta.properties"
_FEATURES = "bootstrap.checkpoint"  # the versions of Kafka's features, the same for each broker of a cluster
# The watcher's interpreter may not find this package as the parent does, so it gets the path as an argument.
WATCHER = (
    "import sys; sys.path.append(sys.argv[1]); from tailrace.testing.broker import watch; sys.exit(watch(sys.argv[2:]))"
)


@dataclass(frozen=True)
class Node:
    """The id and ports of one broker, which is also a controller."""

    node_id: int
    port: int
    controller_port: int
    tls_port: int = 0  # only of a secured broker: for clients with a certificate


class Broker:
    """One broker and its process. After a stop or kill it can be started again, with its data and its ports."""

    def __init__(
        self,
        node: Node,
        folder: Path,
        java: Sequence[str],
        rubbish: Path | None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.node_id = node.node_id
        self.port = node.tls_port or node.port
        self.options = dict(options or {})  # connection options of a client that may list the brokers
        self.folder = folder
        self.log = folder / "kafka.log"
        self._java = java
        self._rubbish = rubbish
        self._watcher: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the broker's JVM, even after it has ended."""
        if self._pid is None:
            raise InvariantBroken(f"broker {self.node_id} of the embedded Kafka has never been started")
        return self._pid

    @property
    def alive(self) -> bool:
        """Return whether the process exists; a paused one does."""
        return self._watcher is not None and self._watcher.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the broker unless it is running, and wait until it serves; without a quorum a broker does not serve."""
        if not self.alive:
            self._release()
            self._launch()
        if wait:
            wait_for([self], {self.node_id})

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """Shut the broker down in order; kill it if it has not ended within the limit."""
        self.ask_to_stop()
        self.finish(limit)

    def kill(self) -> None:
        """Kill the process at once, as kill -9 does."""
        self._signal(signal.SIGKILL)
        self.finish(STOP_LIMIT)

    def pause(self) -> None:
        """Suspend the process: its connections stay open, but nothing answers once this has returned."""
        self._signal(signal.SIGSTOP)
        end = time.monotonic() + STOP_LIMIT
        while not _suspended(self.pid):  # on a busy machine, its threads answer until the signal reaches one of them
            if time.monotonic() > end:
                raise InvariantBroken(f"broker {self.node_id} was not suspended within {STOP_LIMIT:.0f} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """Begin an orderly shutdown without waiting for its end."""
        self._signal(signal.SIGTERM)
        self.resume()  # a paused process handles the signal once resumed

    def finish(self, limit: float) -> None:
        """Wait for the end of the process; after the limit, kill it."""
        if self._watcher is not None:
            try:
                self._watcher.wait(limit)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._watcher.wait(STOP_LIMIT)
        self._release()

    def last_lines(self, count: int = 15) -> str:
        """Return the end of the broker's log."""
        if not self.log.exists():
            return "    (there is no log)"
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 20_000))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-count:]) or "    (the log is empty)"

    def formatted(self) -> bool:
        """Return whether the data folder is formatted."""
        return (self.folder / "data" / _PROPERTIES).exists()

    def format_like(self, other: Broker) -> None:
        """Format the data folder as another broker's of the same cluster, which saves the start of a JVM."""
        there, here = other.folder / "data", self.folder / "data"
        here.mkdir(exist_ok=True)  # a start that was killed may have left it
        shutil.copy(there / _FEATURES, here / _FEATURES)
        own = {"node.id": str(self.node_id), "directory.id": random_id()}
        lines = (there / _PROPERTIES).read_text(encoding="utf-8").splitlines()
        named = [line.partition("=") for line in lines if not line.startswith("#")]
        text = "".join(f"{name}={own.get(name, value)}\n" for name, _, value in named)
        (here / _PROPERTIES).write_text(text, encoding="utf-8")  # last, since it marks the folder as formatted

    def format(self, cluster_id: str) -> None:
        """Format the data folder with Kafka's own tool."""
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", "server.properties"]
        try:
            with self.log.open("ab") as log:
                subprocess.run(
                    command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=START_LIMIT, check=True,
                )  # fmt: skip
        except subprocess.SubprocessError as error:
            why = "within the limit" if isinstance(error, subprocess.TimeoutExpired) else "without an error"
            raise _did_not_start(self, f"its data folder could not be formatted {why}") from error

    def _launch(self) -> None:
        command = [sys.executable, "-c", WATCHER, str(Path(__file__).parents[2]), str(os.getpid())]
        command += [str(self._rubbish or ""), *self._java, "kafka.Kafka", "server.properties"]
        with self.log.open("ab") as log:
            self._watcher = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            said = _first_line(self._watcher, START_LIMIT)
            if not said.isdigit():
                raise _did_not_start(self, f"its watcher did not start it within {START_LIMIT:.0f} s")
            self._pid = int(said)
        except BaseException:
            self._release()
            raise

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _release(self) -> None:
        """Release the watcher, which ends when its standard input is closed if it has not ended before."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            for pipe in (watcher.stdin, watcher.stdout):
                if pipe is not None:
                    pipe.close()
            watcher.wait(STOP_LIMIT)


def _suspended(pid: int) -> bool:
    """Return whether every thread is stopped; without /proc, assume it."""
    states = []
    for each in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            states.append(each.read_text().rpartition(")")[2].split()[0])
    return set(states) <= {"T"}


def random_id() -> str:
    """Make a new id in Kafka's form. It begins with a letter: Kafka's own tool would read a dash as the next option."""
    return "T" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def wait_for(brokers: Sequence[Broker], expected: set[int]) -> None:
    """Wait until each of the brokers answers and lists all the expected ones as registered."""
    from confluent_kafka.admin import AdminClient

    until = time.monotonic() + START_LIMIT
    for broker in brokers:
        client: AdminClient | None = None
        registered: set[int] = set()
        while not expected <= registered:
            if not broker.alive:
                raise _did_not_start(broker, "its process ended")
            if time.monotonic() >= until:
                raise _did_not_start(
                    broker,
                    f"waited {START_LIMIT:.0f} s for it to answer on port {broker.port} and list the brokers"
                    f" {sorted(expected)}; it listed {sorted(registered) or 'none'}",
                )
            # A client that failed to connect is slow to retry, so it is created once the port is open.
            if client is None and _answers(broker.port):
                address = f"{HOST}:{broker.port}"
                client = AdminClient({"bootstrap.servers": address, "log_level": 0, **broker.options})
            if client is not None:
                registered = _registered(client)
            if not expected <= registered:
                time.sleep(0.05)


def watch(arguments: Sequence[str]) -> int:
    """Run the watcher: start the broker, print its pid, and kill it when the parent has ended."""
    parent, rubbish, *command = arguments
    # The broker holds the other end of this pipe: it closes when the broker ends.
    ended, held = os.pipe()
    jvm = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=(held,), preexec_fn=_end_with_watcher()
    )
    os.close(held)
    os.write(1, f"{jvm.pid}\n".encode())
    while True:
        ready = _ready([0, ended], 1.0)
        if ended in ready:
            return jvm.wait()
        # A process that the parent forked may hold the pipe open longer than the parent lives.
        if 0 in ready or os.getppid() != int(parent):
            break
    jvm.kill()
    jvm.wait()
    if rubbish:
        shutil.rmtree(rubbish, ignore_errors=True)
    return 1


def _end_with_watcher() -> Callable[[], None] | None:
    """Return a hook that makes Linux kill the broker if the watcher is killed; safe as the watcher has one thread."""
    if sys.platform != "linux":
        return None
    libc, set_death_signal = ctypes.CDLL(None), 1
    return lambda: libc.prctl(set_death_signal, int(signal.SIGKILL)) and None


def _first_line(process: subprocess.Popen[bytes], limit: float) -> str:
    if process.stdout is None or not _ready([process.stdout.fileno()], limit):
        return ""
    return process.stdout.readline().decode().strip()


def _ready(files: Sequence[int], limit: float) -> list[int]:
    """Return those that have something to read; with `select.select`, no file's number may be above 1,023."""
    with selectors.DefaultSelector() as waiting:
        for each in files:
            waiting.register(each, selectors.EVENT_READ)
        return [key.fd for key, _ in waiting.select(limit)]


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _registered(client: AdminClient) -> set[int]:
    from confluent_kafka import KafkaException

    try:
        return set(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return set()


def _did_not_start(broker: Broker, why: str) -> BrokerDidNotStart:
    return BrokerDidNotStart(
        f"broker {broker.node_id} of the embedded Kafka: {why}; its log {broker.log} ends with\n{broker.last_lines()}",
        then=f"read {broker.log}",
    )
