"""An API server that has prepared answers, for code that asks about pods."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@contextmanager
def api(answers: Mapping[str, Answer | Sequence[Answer]]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Run an API server with these answers to GET and DELETE; yield its address and the requests it receives.

    Of several answers each is given once, but for the last one.
    """
    asked: list[tuple[str, str, str]] = []
    left = {method: [given] if isinstance(given, tuple) else list(given) for method, given in answers.items()}

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append((self.command, self.path, self.headers["Authorization"]))
            known = left[self.command]
            status, body = known.pop(0) if len(known) > 1 else known[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_DELETE = answer  # noqa: N815 - the base class names them

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def cutting(*answers: bytes) -> Iterator[str]:
    """Run a server that sends one of these bytes as its answer to each request, and closes; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                asking, _ = server.accept()
                with asking:
                    asking.recv(65536)
                    asking.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)
