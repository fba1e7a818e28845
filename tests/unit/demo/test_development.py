"""What `tailrace dev` makes of a pipeline's file, and shows of its outputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tailrace.config import Pipeline
from tailrace.demo.development import Development, here


def test_pipeline_that_has_certificates_runs_on_a_kafka_that_has_none() -> None:
    """Its own broker is one, on loopback, without users; the file stays as it is in production."""
    secured = Pipeline.model_validate(
        {
            "pipeline": "p",
            "kafka": {
                "bootstrap.servers": "kafka.example:9093",
                "options": {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "s"},
            },
            "source": {"topics": ["in"]},
            "sink": {"topic": "out", "format": "raw"},
            "ledger": {"replication": 3},
        }
    )
    found = here(secured, "127.0.0.1:9092")
    assert (found.kafka.bootstrap_servers, dict(found.kafka.options)) == ("127.0.0.1:9092", {})
    assert found.ledger.replication == 1


def test_output_that_the_schema_of_now_does_not_read_is_shown_as_it_is(tmp_path: Path) -> None:
    """It was written with an earlier one; nothing of the topic was shown any more."""
    made = Development(tmp_path / "pipeline.yaml", "127.0.0.1:1", print, print, print)

    def refuse(message: Any) -> str:
        raise ValueError("5 bytes follow the record")

    made._shown["out"] = refuse
    message = SimpleNamespace(key=lambda: b"k", value=lambda: b"v")
    assert made._described("out", message) == "k v"
