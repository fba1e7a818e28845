"""The order in which a run begins."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.errors import OptionRefused
from tailrace.startup import run
from tailrace.startup.session import session
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
        run.run(pipeline, emit=heard, spark=cast("Any", object()))  # other tests of this process have Spark
    assert answers == [200, 503]


def test_driver_leaves_a_spark_session_that_it_was_not_given_as_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would return it instead of a new one; the run would change its settings, and stop it at the end."""
    pipeline = Pipeline.model_validate(
        {"pipeline": "second", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    )
    sought: list[object] = []
    monkeypatch.setattr(run, "preflight", lambda *given: sought.append(given))
    monkeypatch.setattr(run, "Ledger", None)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with pytest.raises(OptionRefused, match="spark=spark"):
        run.run(pipeline)
    with pytest.raises(OptionRefused, match="spark=spark"):
        session(pipeline)
    assert sought == []
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
