"""A real Prometheus for tests, which finds a driver and its gateways as the documentation says."""

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
    """A running one."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of one answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> dict[Labels, float]:
        """The values of an expression now, by their labels."""
        found = self.ask("query", query=expression)["result"]
        return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def one(self, expression: str) -> float | None:
        """The value of an expression that has one; None where it has none yet."""
        values = list(self.query(expression).values())
        return values[0] if len(values) == 1 else None

    def series(self, match: str) -> set[Labels]:
        """Every series that there ever was."""
        return {tuple(sorted(each.items())) for each in self.ask("series", **{"match[]": match})}

    def up(self) -> set[str]:
        """The targets that were scraped well."""
        return {dict(labels)["component"] for labels, value in self.query("up").items() if value == 1}


@contextmanager
def prometheus(folder: Path, url: str, settings: Mapping[str, Any] | None = None) -> Iterator[Prometheus]:
    """Start one that asks the driver at this address for its targets, and scrapes them each second."""
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
