"""A real Prometheus for tests, which finds a driver and its gateways as the documentation describes."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.packages import program
from support.served import free_port, served

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of one response of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[Labels, float]:
        """Return the current values of an expression, by their labels."""
        found = self.ask("query", query=expression)["result"]
        return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def one(self, expression: str) -> float | None:
        """Return the value of an expression, or None unless it has exactly one."""
        values = list(self.query(expression).values())
        return values[0] if len(values) == 1 else None

    def series(self, match: str) -> set[Labels]:
        """Return every series that ever existed."""
        return {tuple(sorted(each.items())) for each in self.ask("series", **{"match[]": match})}

    def up(self) -> set[str]:
        """Return the components whose last scrape succeeded."""
        return {dict(labels)["component"] for labels, value in self.query("up").items() if value == 1}


@contextmanager
def prometheus(folder: Path, url: str, settings: Mapping[str, Any] | None = None) -> Iterator[Prometheus]:
    """Run one that asks the driver at this URL for its targets, and scrapes them every second."""
    binary, port = program("prometheus", "prometheus"), free_port()
    job = {
        "job_name": "tailrace",
        "http_sd_configs": [{"url": f"{url}targets", "refresh_interval": "1s"}],
    }
    content = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(content | dict(settings or {})))
    command = [binary, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'prometheus'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    found = Prometheus(f"http://127.0.0.1:{port}")
    with served("prometheus", command, f"{found.url}/-/ready", folder):
        yield found
