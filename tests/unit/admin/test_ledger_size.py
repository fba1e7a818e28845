"""How many partitions the doctor asks of the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.admin.ledger_size import SHUFFLE, SHUFFLED, Needed, needed
from tailrace.config import Pipeline
from tailrace.startup.session import DEFAULTS


def pipeline(**sections: Any) -> Pipeline:
    """Return a pipeline of raw records with these sections."""
    settings: dict[str, Any] = {
        "pipeline": "sized",
        "kafka": {"bootstrap.servers": "localhost:9092"},
        "source": {"topics": ["in"], "format": "raw"},
        "sink": {"topic": "out", "format": "raw"},
    }
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values if isinstance(values, dict) else values
    return Pipeline.model_validate(settings)


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, Needed(1, 1)),
        ({"sink": {"partitions": 70}}, Needed(1, 1)),
        ({"process": {"partitions": 12}}, Needed(12, 12)),
        ({"process": {"partitions": 12}, "sink": {"partitions": 4}}, Needed(4, 4)),
        ({"process": {"partitions": 12}, "source": {"format": "json", "schema": "a int"}}, Needed(13, 13)),
        ({"process": {"partitions": 12, "function": "f.py:f"}}, Needed(1, 12)),
        ({"process": {"partitions": 2, "function": "f.py:f"}}, Needed(1, 8)),
    ],
)
def test_ledger_of_a_stateless_pipeline_needs_room_for_outputs_behind_a_shuffle(
    sections: dict[str, Any], expected: Needed
) -> None:
    """All else of a batch is fitted to the ledger, and what reads may share one sink partition."""
    assert needed(pipeline(**sections), 100) == expected


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, Needed(1, 8)),
        ({"spark": {"spark.sql.shuffle.partitions": "20"}}, Needed(1, 20)),
        ({"source": {"partitions": 30}}, Needed(1, 30)),
        ({"source": {"format": "json", "schema": "a int"}}, Needed(1, 14)),
        ({"source": {"format": "json", "schema": "a int", "partitions": 10}}, Needed(1, 20)),
        ({"sink": {"partitions": 2}, "source": {"format": "json", "schema": "a int"}}, Needed(1, 8)),
    ],
)
def test_ledger_of_a_stateful_pipeline_may_need_room_for_its_reading_tasks_too(
    sections: dict[str, Any], expected: Needed
) -> None:
    """Each task that reads may reject records, and only Spark knows what shuffles."""
    assert needed(pipeline(checkpoint="/state", process={"function": "f.py:f"}, **sections), 6) == expected


def test_doctor_knows_the_shuffle_partitions_of_a_session() -> None:
    """It does not import Spark for one number."""
    assert DEFAULTS[SHUFFLE] == SHUFFLED
