"""A real MinIO for tests, and a proxy in front of it that refuses or cuts off the requests that a test chooses.

MinIO is a binary: taken from the PATH, from a compressed copy in `shared/cluster/bin` next to the
checkout, or built from its Go module. If none of these works, the tests fail with a message. What was unpacked or built
stays in the user's cache, because building takes minutes.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.served import free_port, served
from tailrace import jars

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MODULE = f"github.com/minio/minio@{VERSION}"
KEY, SECRET, BUCKET = "tester", "a-secret-of-the-tests", "checkpoints"
BUILD_LIMIT = 1200.0
_PACKED = Path(__file__).resolve().parents[3] / "shared" / "cluster" / "bin" / "minio.zst"


def binary() -> Path:
    """Return MinIO's binary; unpack or build it in the user's cache if it is neither there nor on the PATH."""
    named = shutil.which("minio")
    if named is not None:
        return Path(named)
    kept = jars.folder().parent / f"minio-{VERSION}"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:  # several test processes may do this at once
            _made(Path(folder)).replace(kept)
    return kept


def _made(folder: Path) -> Path:
    """Unpack MinIO into the folder if a compressed copy is there, or build it."""
    built = folder / "minio"
    if _PACKED.is_file() and shutil.which("zstd"):
        subprocess.run(["zstd", "-q", "-d", str(_PACKED), "-o", str(built)], check=True, timeout=BUILD_LIMIT)
        built.chmod(0o755)
    elif shutil.which("go"):
        environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        subprocess.run(["go", "install", MODULE], check=True, env=environment, timeout=BUILD_LIMIT)
    else:
        raise FileNotFoundError("the tests need MinIO: put it on the PATH, or install Go")
    return built


@dataclass(frozen=True)
class Minio:
    """A running MinIO with one empty bucket."""

    endpoint: str
    data: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return what a pipeline needs to reach it."""
        return reach(self.endpoint)

    def objects(self, prefix: str = "") -> set[str]:
        """Return the names of the bucket's objects, read from MinIO's own folder, without S3A's markers of folders."""
        base = self.data / BUCKET
        found = {str(each.parent.relative_to(base)) for each in (base / prefix).rglob("xl.meta")}
        return {name for name in found if not name.endswith("__XLDIR__")}


def reach(endpoint: str, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
    """Return the environment for a process that uses an endpoint."""
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "TAILRACE_SPARK__spark_hadoop_fs_s3a_endpoint": endpoint,
    }


@contextmanager
def minio(folder: Path) -> Iterator[Minio]:
    """Run MinIO on a free port."""
    data = folder / "minio-data"
    (data / BUCKET).mkdir(parents=True)  # a folder in the data folder is a bucket
    port, console = free_port(), free_port()
    command = [str(binary()), "server", "--address", f"127.0.0.1:{port}"]
    command += ["--console-address", f"127.0.0.1:{console}", str(data)]
    environment = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    endpoint = f"http://127.0.0.1:{port}"
    with served("minio", command, f"{endpoint}/minio/health/ready", folder, environment):
        yield Minio(endpoint, data)


class Fault(StrEnum):
    """What the proxy may do instead of forwarding a request."""

    REFUSE = "503"
    CUT = "cut"
    FORBID = "403"


Judge = Callable[[str, str], Fault | None]


@dataclass
class Proxy:
    """Forwards requests to MinIO, except those that `judge` has a fault for; records what it did."""

    endpoint: str
    judge: Judge = lambda method, path: None
    faults: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


@contextmanager
def proxy(before: str) -> Iterator[Proxy]:
    """Run a proxy in front of an endpoint, on a port of its own."""
    target = before.removeprefix("http://")
    found = Proxy("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            with suppress(ConnectionError, TimeoutError):
                super().handle_one_request()
                return
            self.close_connection = True

        def handle_expect_100(self) -> bool:
            return True if found.judge(self.command, self.path) is Fault.CUT else super().handle_expect_100()

        def pass_on(self) -> None:
            found.seen.append(f"{self.command} {self.path}")
            fault = found.judge(self.command, self.path)
            if fault is not None:
                found.faults.append(f"{fault} {self.command} {self.path}")
            if fault is Fault.CUT:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fault is not None:
                self.send_response(int(fault))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection(target, timeout=60)
            try:
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in {"expect", "connection"}:
                        connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
                self.send_header("Content-Length", length or "0")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
            finally:
                connection.close()

        def log_message(self, *_: object) -> None:
            pass

    for verb in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{verb}", Handler.pass_on)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="proxy", daemon=True)
    thread.start()
    found.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)
