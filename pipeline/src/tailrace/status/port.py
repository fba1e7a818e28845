"""The driver's HTTP port: metrics, health, readiness, the page with its documents, and the gateways' addresses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tailrace.config import Pipeline
from tailrace.status.board import Board
from tailrace.telemetry.serving import Answer, Port, scraped

_PAGE = Path(__file__).with_name("page.html")
# The page is one file and requests only /status, /history and /samples: what is injected into it reaches nothing else.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def opened(pipeline: Pipeline, board: Board) -> Port:
    """Open the port and serve the board on it."""
    port: list[Port] = []
    pages = {
        "/": page,
        "/metrics": scraped(board.measures, pipeline.pipeline),
        "/healthz": lambda: health(board),
        "/readyz": lambda: readiness(board),
        "/status": lambda: Answer.json(board.status()),
        "/history": lambda: Answer.json(board.history()),
        "/targets": lambda: targets(board, port[0].address if port else ""),
    }
    if pipeline.metrics.samples:
        pages["/samples"] = lambda: Answer.json(board.samples)
    port.append(Port(pipeline.metrics.host, pipeline.metrics.port, pages))
    return port[0]


@cache
def _page() -> bytes:
    return _PAGE.read_bytes()


def page() -> Answer:
    """Answer with the status page, for people."""
    return Answer(_page(), "text/html; charset=utf-8", headers=(("Content-Security-Policy", _POLICY),))


def health(board: Board) -> Answer:
    """Answer a liveness probe: 503 if a restart may help; it does not while the driver outlasts absent brokers."""
    seen, pipeline = board.status(), board.pipeline
    away, most = seen["away"], pipeline.kafka.patience + pipeline.metrics.stalled
    outlasts = away is not None and seen["now"] - away["since"] <= most
    why = "" if outlasts else seen["stalled"]
    return Answer.text(f"stalled: {why}", 503) if why else Answer.text("ok")


def readiness(board: Board) -> Answer:
    """Answer a readiness probe: 200 if the driver reads new records, or could take over at once."""
    phase = board.status()["phase"]
    return Answer.text(phase) if board.ready else Answer.text(f"not ready: {phase}", 503)


def targets(board: Board, own: str) -> Answer:
    """Answer Prometheus' http_sd_configs: the driver, and the gateways that it knows."""
    gateways = [each["address"] for each in board.gateways() if each["address"]]
    found = [{"targets": [own], "labels": {"component": "driver"}}]
    found += [{"targets": gateways, "labels": {"component": "gateway"}}] if gateways else []
    return Answer(json.dumps(found).encode(), "application/json")
