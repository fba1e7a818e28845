"""The order in which a run begins."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from tailrace.config import Pipeline
from tailrace.startup import run
from tailrace.status.events import Event, Serving


def test_the_port_answers_before_the_brokers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that waits for its brokers, or fails at them, can be probed, scraped and looked at meanwhile."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "early",
            "source": {"topics": ["in"]},
            "sink": {"topic": "out", "format": "raw"},
            "metrics": {"port": 0},
        }
    )
    urls: list[str] = []
    answers: list[int] = []

    def heard(event: Event) -> None:
        if isinstance(event, Serving):
            urls.append(event.url)

    def preflight(*_: object) -> None:
        for page in ("healthz", "readyz"):
            try:
                with urllib.request.urlopen(f"{urls[0]}{page}", timeout=10) as answer:
                    answers.append(answer.status)
            except urllib.error.HTTPError as error:
                answers.append(error.code)
        raise RuntimeError("no broker answers")

    monkeypatch.setattr(run, "preflight", preflight)
    with pytest.raises(RuntimeError, match="no broker"):
        run.run(pipeline, emit=heard)
    assert answers == [200, 503]
