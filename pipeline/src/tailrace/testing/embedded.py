"""A real Kafka from its jars, for development and tests: one command, no installation, nothing left behind.

Each broker is a process of its own (`tailrace.testing.broker`), so a test can stop, kill and pause each; this module
lays out the cluster: ids, ports, configuration, folders.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import SystemRandom
from typing import Self

from tailrace import jars
from tailrace.errors import BrokerDidNotStart, ConfigInvalid, InvariantBroken
from tailrace.testing import secured
from tailrace.testing.broker import HOST, STOP_LIMIT, Broker, Node, random_id, wait_for
from tailrace.testing.secured import Security

PORT_TRIES = 3
LAST_PORT = 65_535
# Below the kernel's range for outgoing connections, so that none takes a stopped broker's port.
PORTS = range(15_000, 32_000)
CLUSTER_FILE = "cluster.json"

# Only the client compiler. Measured against both compilers: ready after 1.4 s instead of 1.9, with 40 % less CPU; 1.5
# million records and 300 transactions also cost less CPU, because a broker hardly computes.
JVM_FLAGS: tuple[str, ...] = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)
LOG_FLAGS = tuple(
    f"-Dorg.slf4j.simpleLogger.{name}={value}"
    for name, value in {
        "defaultLogLevel": "warn",
        "showDateTime": "true",
        "dateTimeFormat": "yyyy-MM-dd HH:mm:ss.SSS",
    }.items()
)


@dataclass(frozen=True)
class EmbeddedOptions:
    """The options of an embedded Kafka; without a folder a temporary one is used, and removed at the end.

    With a port, the first broker listens there and the others on the ports that follow. A secured Kafka admits only
    users to whom `EmbeddedKafka.security` gave a password or a certificate, and allows only what it granted.
    """

    brokers: int = 1
    port: int | None = None
    folder: Path | None = None
    heap: str = "256m"
    settings: Mapping[str, str] = field(default_factory=dict)
    secured: bool = False

    def __post_init__(self) -> None:
        if self.brokers < 1:
            raise ConfigInvalid(f"an embedded Kafka needs at least one broker, not {self.brokers}")
        if self.port is not None and not 1 <= self.port <= LAST_PORT + 1 - self.brokers:
            raise ConfigInvalid(
                f"{self.brokers} brokers do not fit from port {self.port} on: ports are 1 to {LAST_PORT}"
            )

    @property
    def listeners(self) -> Sequence[int]:
        """Return the ports that the brokers must have; empty if any will do."""
        return () if self.port is None else range(self.port, self.port + self.brokers)


@dataclass(frozen=True)
class Cluster:
    """The cluster's layout, which a folder keeps next to the data so that the cluster can be started again."""

    cluster_id: str
    nodes: tuple[Node, ...]


def properties(node: Node, cluster: Cluster, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of one broker. Paths are relative to its folder, which may have any name."""
    count = len(cluster.nodes)
    replication, in_sync = str(min(3, count)), str(2 if count >= 3 else 1)
    ours = {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(f"{each.node_id}@{HOST}:{each.controller_port}" for each in cluster.nodes),
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "data",
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "auto.create.topics.enable": "false",
        # A test's records may have any time; only a topic's own setting lets them expire.
        "log.retention.ms": "-1",
        # These make a small Kafka quick to start and to use.
        "group.initial.rebalance.delay.ms": "0",
        # A killed or paused broker is noticed after 3 s, and nothing waits 30 s for a paused one's answer.
        # The controller writes an empty record this often; at the default, 500, a quarter of an idle broker's CPU.
        "metadata.max.idle.interval.ms": "5000",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "controller.socket.timeout.ms": "3000",
        "replica.socket.timeout.ms": "3000",
        "log.cleaner.dedupe.buffer.size": str(4 << 20),  # the default would be half of the heap
    }
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        ours[f"{topic}.replication.factor"] = replication
        ours[f"{topic}.num.partitions"] = "4"
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        ours[f"{topic}.min.isr"] = in_sync
    return {**ours, **settings}


class EmbeddedKafka:
    """A Kafka on loopback: `with EmbeddedKafka() as kafka: … kafka.bootstrap_servers …`."""

    def __init__(self, options: EmbeddedOptions | None = None) -> None:
        self.options = options or EmbeddedOptions()
        self.brokers: list[Broker] = []
        self._folder: Path | None = None
        self._security: Security | None = None
        self._owner = 0

    @property
    def folder(self) -> Path:
        """Return the folder of the brokers' data and logs."""
        if self._folder is None:
            raise InvariantBroken("the embedded Kafka has no folder: it has not been started")
        return self._folder

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses of all brokers, running or not; those for certificates if secured."""
        if not self.brokers:
            raise InvariantBroken("the embedded Kafka has no address: it has not been started")
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers)

    @property
    def security(self) -> Security:
        """Return the users and permissions of a secured Kafka."""
        if self._security is None:
            raise InvariantBroken("the embedded Kafka is not secured, or has not been started")
        return self._security

    def start(self) -> Self:
        """Start every broker that is not running, and return when all are registered and answer."""
        if self.brokers:
            self._start_brokers()
            return self
        _require_free(self.options.listeners)
        java, classpath = jars.java(), jars.ensure("kafka")
        command = [str(java), f"-Xmx{self.options.heap}", *JVM_FLAGS, *LOG_FLAGS]
        command += ["-cp", os.pathsep.join(map(str, classpath))]
        self._owner = os.getpid()
        atexit.register(self.stop)
        given = self.options.folder
        self._folder = given.absolute() if given else Path(tempfile.mkdtemp(prefix="tailrace-kafka-"))
        for attempt in range(1, PORT_TRIES + 1):
            new = not (self._folder / CLUSTER_FILE).exists()
            try:
                self._lay_out(command)
                self._start_brokers()
                break
            except BrokerDidNotStart:
                taken = any("Address already in use" in broker.last_lines(200) for broker in self.brokers)
                self._end_brokers(orderly=False)
                # The log explains the failure, so the folder stays, unless another process just took a port.
                if not (new and taken) or attempt == PORT_TRIES:
                    atexit.unregister(self.stop)
                    raise
                self._clear()
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop all brokers and remove a temporary folder; in a process forked from the owner, do nothing."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.stop)
        # A folder that is about to be removed needs no orderly shutdown.
        self._end_brokers(orderly=self.options.folder is not None)
        if self._folder is not None and self.options.folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _lay_out(self, java: Sequence[str]) -> None:
        """Write each broker's configuration, and format its folder if it is new."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BrokerDidNotStart(f"its folder cannot be created: {error}", then="choose another folder") from error
        closed = self.options.secured
        cluster = _cluster(self.folder / CLUSTER_FILE, self.options.brokers, self.options.listeners, closed)
        self._security = Security(self.folder, cluster.nodes) if closed else None
        options = self._security.administrator.options if self._security is not None else {}
        rubbish = None if self.options.folder else self.folder
        self.brokers = []
        sample: Broker | None = None
        for node in cluster.nodes:
            folder = self.folder / f"broker-{node.node_id}"
            folder.mkdir(exist_ok=True)
            settings = {**(secured.properties(node) if closed else {}), **self.options.settings}
            lines = [f"{name}={value}\n" for name, value in properties(node, cluster, settings).items()]
            (folder / "server.properties").write_text("".join(lines), encoding="utf-8")
            broker = Broker(node, folder, java, rubbish, options)
            self.brokers.append(broker)
            if broker.formatted():
                continue
            if sample is None:
                broker.format(cluster.cluster_id)
                sample = broker
            else:
                broker.format_like(sample)

    def _start_brokers(self) -> None:
        for broker in self.brokers:
            broker.start(wait=False)
        wait_for(self.brokers, {broker.node_id for broker in self.brokers})

    def _end_brokers(self, *, orderly: bool) -> None:
        # All at once: brokers stopped one by one would wait for a quorum that is going away.
        until = time.monotonic() + STOP_LIMIT
        for broker in self.brokers:
            if orderly:
                broker.ask_to_stop()
            else:
                broker.kill()
        for broker in self.brokers:
            broker.finish(max(0.0, until - time.monotonic()))
        self.brokers = []

    def _clear(self) -> None:
        for path in self.folder.glob("broker-*"):
            shutil.rmtree(path)
        (self.folder / CLUSTER_FILE).unlink()


def _cluster(file: Path, brokers: int, listeners: Sequence[int] = (), closed: bool = False) -> Cluster:
    """Return the folder's layout, on the requested ports; a new folder gets one with free ports."""
    if not file.exists():
        each = 3 if closed else 2
        ports = _free_ports(each * brokers, listeners)
        nodes = [Node(number + 1, *ports[each * number : each * (number + 1)]) for number in range(brokers)]
        name = random_id()
        _keep(file, Cluster(name, tuple(nodes)))
    kept = json.loads(file.read_text(encoding="utf-8"))
    cluster = Cluster(kept["cluster_id"], tuple(Node(**node) for node in kept["nodes"]))
    if closed != all(node.tls_port for node in cluster.nodes):
        raise ConfigInvalid(
            f"{file.parent} contains a Kafka that is {'not ' if closed else ''}secured",
            kept="the folder is unchanged",
            then="choose another folder",
        )
    if len(cluster.nodes) != brokers:
        raise ConfigInvalid(
            f"{file.parent} contains a Kafka with {len(cluster.nodes)} brokers, but {brokers} were requested",
            kept="the folder is unchanged",
            then=f"request {len(cluster.nodes)} brokers, or choose another folder",
        )
    # The controllers' ports are fixed; a broker registers its own address again at each start.
    if listeners and [node.port for node in cluster.nodes] != list(listeners):
        taken = [node.controller_port for node in cluster.nodes if node.controller_port in listeners]
        if taken:
            raise ConfigInvalid(
                f"{file.parent} contains a Kafka whose controller has port {taken[0]}, requested here for a broker",
                kept="the folder is unchanged",
                then="choose another port",
            )
        moved = [replace(node, port=port) for node, port in zip(cluster.nodes, listeners, strict=True)]
        cluster = replace(cluster, nodes=tuple(moved))
        _keep(file, cluster)
    return cluster


def _keep(file: Path, cluster: Cluster) -> None:
    file.write_text(json.dumps(asdict(cluster)), encoding="utf-8")


def _require_free(ports: Iterable[int]) -> None:
    """Raise unless a broker can listen on each of the ports."""
    for port in ports:
        with socket.socket() as attempt:
            # As Kafka does, so that closed connections of a broker that has ended do not block the port.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((HOST, port))
            except OSError as error:
                raise BrokerDidNotStart(
                    f"port {port} of {HOST} is not available: {error.strerror}",
                    kept="nothing was started",
                    then="choose another port (tailrace kafka --port), or stop the process that listens there",
                ) from error


def _free_ports(count: int, avoid: Container[int]) -> list[int]:
    # SystemRandom, because a test that seeds the global generator would always try the same ports.
    candidates = [port for port in SystemRandom().sample(PORTS, len(PORTS)) if port not in avoid]
    found: list[int] = []
    while len(found) < count:
        if not candidates:
            raise BrokerDidNotStart(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}")
        with socket.socket() as attempt, suppress(OSError):
            attempt.bind((HOST, candidates[-1]))
            found.append(candidates[-1])
        candidates.pop()
    return found
