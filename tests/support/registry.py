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
        self.levels: dict[str, str] = {}
        self.refused: set[str] = set()  # subjects that take no further schema
        self.asked: list[str] = []
        self.broken = False
        self.covered = False  # a proxy answers in its place
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

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the JSON for one request."""
        self.asked.append(f"{method} {path}")
        if self.broken:
            return 500, {"error_code": 50001, "message": "the registry is broken"}
        if self.covered:
            return 404, "page not found"
        if method == "GET" and (found := re.match(r"/schemas/ids/(\d+)", path)):
            text = self.schemas.get(int(found[1]))
            return (200, {"schema": text}) if text else (404, {"error_code": 40403, "message": "Schema not found"})
        if method == "GET" and (found := re.match(r"/subjects/([^/?]+)/versions(?:/(\d+))?(?:\?|$)", path)):
            return self._versions(found[1], found[2])
        if method == "GET" and (found := re.match(r"/config/([^/?]+)", path)) and found[1] in self.levels:
            return 200, {"compatibilityLevel": self.levels[found[1]]}
        if method == "GET" and path.startswith("/config/"):
            return 404, {"error_code": 40408, "message": "Subject does not have subject-level compatibility configured"}
        if method == "GET" and path == "/config":
            return 200, {"compatibilityLevel": "BACKWARD"}
        if method == "POST" and (found := re.match(r"/compatibility/subjects/([^/?]+)/versions\?", path)):
            return 200, {"is_compatible": found[1] not in self.refused}
        if method == "POST" and (found := re.match(r"/subjects/([^/?]+)/versions", path)):
            return 200, {"id": self.add(json.loads(body["schema"]), found[1])}
        if method == "POST" and (found := re.match(r"/subjects/([^/?]+)", path)):
            for version, number in enumerate(self.subjects.get(found[1], []), 1):
                if json.loads(self.schemas[number]) == json.loads(body["schema"]):
                    return 200, {"subject": found[1], "id": number, "version": version, "schema": body["schema"]}
        return 404, {"error_code": 40401, "message": "not found"}

    def _versions(self, subject: str, version: str | None) -> tuple[int, Any]:
        """Return the versions of a subject, or one of them."""
        ids = self.subjects.get(subject, [])
        if version is None and ids:
            return 200, list(range(1, len(ids) + 1))
        if version is None or int(version) > len(ids):
            return 404, {"error_code": 40401, "message": "Subject or version not found"}
        number = ids[int(version) - 1]
        return 200, {"subject": subject, "id": number, "version": int(version), "schema": self.schemas[number]}


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
