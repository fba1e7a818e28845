"""A small HTTP server: a few paths, each answered by a function.

It answers GET and HEAD and reads no body. If the port is taken, the next free one is used and logged.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from tailrace import errors
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import CONTENT_TYPE, Measures

log = logging.getLogger(__name__)

TRIES: Final = 64
_END_EVERY = 0.1  # seconds between checks for shutdown
_PATIENCE = 10.0  # seconds within which a client must send its request
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})
# The pod's own address, which Kubernetes puts into an executor's environment.
_POD = "SPARK_EXECUTOR_POD_IP"


@dataclass(frozen=True)
class Answer:
    """The response of a path."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def text(cls, text: str, status: int = 200) -> Answer:
        """Make a plain-text response."""
        return cls(f"{text}\n".encode(), status=status)

    @classmethod
    def json(cls, content: Any, status: int = 200) -> Answer:
        """Make a JSON response."""
        return cls(json.dumps(content, ensure_ascii=False).encode(), "application/json", status)


Page = Callable[[], Answer]


class Port:
    """An HTTP server that runs in its own threads."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self._server = _bound(host, port, pages)
        self._host = host
        self.number = int(self._server.server_address[1])
        run = functools.partial(self._server.serve_forever, _END_EVERY)
        threading.Thread(target=run, name="tailrace-http", daemon=True).start()

    @property
    def address(self) -> str:
        """Return the address at which others can reach this server: host:port."""
        host = os.environ.get(_POD, "") or _own_address() if self._host in _EVERYWHERE else self._host
        return f"[{host}]:{self.number}" if ":" in host else f"{host}:{self.number}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scraped(measures: Measures, pipeline: str) -> Page:
    """Return the page that Prometheus scrapes."""

    def page() -> Answer:
        measures.add(metrics.SCRAPES, pipeline)
        return Answer(measures.text(), CONTENT_TYPE)

    return page


def _own_address() -> str:
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level only: a client that disconnected is not worth a report."""
        log.debug("a client at %s was not answered", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _bound(host: str, port: int, pages: Mapping[str, Page]) -> _Server:
    handler = type("Handler", (_Handler,), {"pages": dict(pages)})
    kind = _Server6 if ":" in host else _Server
    last = OSError()
    for number in [port] if port == 0 else range(port, min(port + TRIES, 65536)):
        try:
            server = kind((host, number), handler)
        except OSError as error:
            last = error
            if error.errno != errno.EADDRINUSE:
                break
        else:
            if port not in {0, number}:
                log.warning("port %s is taken: serving on %s", port, number)
            return server
    raise errors.PortUnusable(
        f"nothing can be served on {host}:{port} ({last.strerror or last})"
        + (f", nor on the {TRIES - 1} ports after it" if last.errno == errno.EADDRINUSE else ""),
        kept="nothing was read or written",
        then="set metrics.host and metrics.port to an address and port of this machine, or metrics.enabled: false",
    )


class _Handler(BaseHTTPRequestHandler):
    pages: Mapping[str, Page] = {}
    protocol_version = "HTTP/1.1"
    server_version = "tailrace"
    sys_version = ""
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer a GET request."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Answer a HEAD request, without a body."""
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        try:
            answer = page() if page is not None else Answer.text(f"paths: {' '.join(sorted(self.pages))}", 404)
        except Exception as error:
            log.exception("%s could not be answered", self.path)
            answer = Answer.text(f"{type(error).__name__}; see the log", 500)
        with contextlib.suppress(ConnectionError, TimeoutError):
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in answer.headers:
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing: scrapes are routine."""
