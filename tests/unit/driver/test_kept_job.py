"""The driver's cost of collecting the answers of a batch's tasks."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.driver.spark_jobs import answers, kept_job

TASKS = 3
CALL = "c"  # Py4J's command for a method call; looking up a class by name is another command


def test_answers_of_a_batch_are_fetched_by_method_calls_only(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No class is looked up by name: that reads the index of every jar, and took a tenth of a short batch."""
    rows = spark.range(0, TASKS, 1, TASKS).selectExpr("cast(cast(id as string) as binary)")
    job: Any = kept_job(rows)
    client, sent = type(job._gateway_client), []
    send = client.send_command

    def heard(self: Any, command: str, *given: Any, **named: Any) -> Any:
        sent.append(command)
        return send(self, command, *given, **named)

    monkeypatch.setattr(client, "send_command", heard)
    assert answers(job) == [b"0", b"1", b"2"]
    calls = [each.split("\n")[2] for each in sent if each.startswith(CALL)]
    assert calls == ["collect", "size", *["get", "getBinary"] * TASKS]
    assert [each for each in sent if each[0] not in (CALL, "m")] == []  # m: what Python has released
