"""A real ZooKeeper on loopback, from its jars, for the tests that migrate a job whose offsets it holds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from kazoo.client import KazooClient

import tailrace
from support.served import free_port
from tailrace import jars
from tailrace.testing.broker import HOST, WATCHER

START_LIMIT = 60.0
LIST = Path(__file__).with_suffix(".txt")


class ZooKeeper:
    """One server; it ends with this process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """Return its address."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it with the data that it had, and wait until it accepts a client."""
        settings = {
            "tickTime": "500", "dataDir": "data", "clientPort": str(self.port), "clientPortAddress": HOST,
            "admin.enableServer": "false", "maxClientCnxns": "0", "maxSessionTimeout": "30000",
        }  # fmt: skip
        (self.folder / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        path = os.pathsep.join(map(str, jars.provide("zookeeper", jars.parse(LIST.read_text()))))
        java = [str(jars.java()), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        source = str(Path(tailrace.__file__).parents[1])
        command = [sys.executable, "-c", WATCHER, source, str(os.getpid()), "", *java]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]
        with (self.folder / "log").open("ab") as log:
            self._watcher = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + START_LIMIT
        while True:
            client = KazooClient(self.servers, timeout=5)
            try:
                client.start(timeout=5)
                return
            except Exception as error:
                if time.monotonic() > until or self._watcher.poll() is not None:
                    log_text = (self.folder / "log").read_text()[-2000:]
                    raise TimeoutError(f"ZooKeeper did not start within {START_LIMIT:.0f} s: {log_text}") from error
            finally:
                client.stop()
                client.close()

    def stop(self) -> None:
        """Stop the server and keep its data."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher.stdin is not None:
            watcher.stdin.close()  # the watcher ends the server, then itself
            watcher.wait(30)

    def client(self) -> Any:
        """Return a plain client, started; the caller stops it."""
        client = KazooClient(self.servers, timeout=10)
        client.start(timeout=30)
        return client

    def put(self, node: str, text: str) -> None:
        """Write a node as another job would."""
        client = self.client()
        try:
            client.ensure_path(node)
            client.set(node, text.encode())
        finally:
            client.stop()
            client.close()

    def get(self, node: str) -> tuple[str, int]:
        """Return a node's text, and the number of times it has been written."""
        client = self.client()
        try:
            data, stat = client.get(node)
            return data.decode(), stat.version
        finally:
            client.stop()
            client.close()
