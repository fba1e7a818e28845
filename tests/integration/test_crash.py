"""A crash that Python alone cannot place: after a commit is sent, before its answer is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.direct import house
from faults.scenario import Context
from tailrace import crash_points
from tailrace.crash_points import Crash, Point
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


def test_crash_after_a_commit_is_sent_strikes_once_and_loses_nothing(
    tailrace_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The replay finds the batch committed or writes it; readers see each record once."""
    context = Context(tailrace_kafka, tmp_path, seed=1, quick=True, say=lambda text: None)
    marks = tmp_path / "crashes"
    with house(
        context, rows=200, sinks=2, crashes=[Crash(Point.COMMIT_SENT, batch=1, partition=1)], marks=marks
    ) as one:
        first = one.pid()
        for _ in range(3):
            one.batch()
        assert one.pid() != first
        [crash] = crash_points.happened(marks)
        assert (crash["at"], crash["batch"], crash["partition"], crash["pid"]) == ("commit_sent", 1, 1, first)
        proof = one.prove()
    assert proof.verdict.all().wrong == 0, str(proof)
    assert proof.verdict.of(one.cuts()).torn == 0
    assert (proof.unsteady, proof.lingering, proof.surplus, proof.markers) == (0, (), (), ())
