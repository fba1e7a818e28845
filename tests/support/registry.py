"""A schema registry for tests: a real HTTP server with the few endpoints of Confluent's protocol that are in use."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistry:
    """Schemas by id, ids by subject, and the requests received."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.broken = False
        self.url = ""

    def add(self, schema: dict[str, Any], subject: str = "in-value") -> int:
        """Register a schema and return its id."""
        text = json.dumps(schema)
        number = next((known for known, other in self.schemas.items() if other == text), len(self.schemas) + 1)
        self.schemas[number] = text
        ids = self.subjects.setdefault(subject, [])
        if number not in ids:
            ids.append(number)
        return number

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON for one request."""
        self.asked.append(f"{method} {path}")
        if self.broken:
            return 500, {"error_code": 50001, "message": "the registry is broken"}
        if method == "GET" and (found := re.match(r"/schemas/ids/(\d+)", path)):
            text = self.schemas.get(int(found[1]))
            return (200, {"schema": text}) if text else (404, {"error_code": 40403, "message": "Schema not found"})
        if method == "POST" and (found := re.match(r"/subjects/([^/?]+)/versions", path)):
            return 200, {"id": self.add(json.loads(body["schema"]), found[1])}
        if method == "POST" and (found := re.match(r"/subjects/([^/?]+)", path)):
            for version, number in enumerate(self.subjects.get(found[1], []), 1):
                if json.loads(self.schemas[number]) == json.loads(body["schema"]):
                    return 200, {"subject": found[1], "id": number, "version": version, "schema": body["schema"]}
        return 404, {"error_code": 40401, "message": "not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Run a registry on a free port of the loopback interface."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer("POST", json.loads(body))

        def _answer(self, method: str, body: dict[str, Any]) -> None:
            status, found = registry.answer(method, self.path, body)
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
