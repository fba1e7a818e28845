"""The last error of a pipeline's drivers, which its next driver shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.pipelines import Bench
from support.plans import plan_of
from tailrace import errors
from tailrace.progress import last_error
from tailrace.progress.ledger import Ledger

pytestmark = pytest.mark.integration
MakeBench = Callable[..., Bench]


def failing(what: str) -> errors.TailraceError:
    """Return the error of a function."""
    return errors.FunctionFailed(what, kept="the rest", then="look")


def test_last_error_outlives_its_driver_and_is_no_plan(bench: MakeBench) -> None:
    """The next driver reads it; what reads plans, markers and positions sees the same as before."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    place = (pipeline.source.topics[0], 0)
    assert last_error.read(pipeline) is None
    with Ledger.of(pipeline) as ledger:
        ledger.take()
        ledger.write(plan_of(pipeline, 0, 1), {place: 1})
        last_error.write(ledger, pipeline, failing("ValueError: 1"), "ab", 5.0, [(1.0, "note", "line")])
        ledger.write(plan_of(pipeline, 1, 1), {place: 2})
        last_error.write(ledger, pipeline, failing("ValueError: 2"), "ab", 6.0, [(1.0, "note", "line")])
    found = last_error.read(pipeline)
    assert found == failing("ValueError: 2").as_dict() | {"run": "ab", "at": 6.0, "log": [(1.0, "note", "line")]}
    with Ledger.of(pipeline) as ledger:
        assert ledger.latest() == plan_of(pipeline, 1, 1)
        assert ledger.positions({place: 0}) == {place: 2}
        assert ledger.markers() == {}


def test_fenced_driver_does_not_write_its_error(bench: MakeBench) -> None:
    """The newer driver's word stands, even if the older one ends later."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(pipeline) as old, Ledger.of(pipeline) as new:
        old.take()
        new.take()
        last_error.write(new, pipeline, failing("ValueError: 1"), "new", 5.0, [(1.0, "note", "line")])
        with pytest.raises(errors.KafkaError):
            last_error.write(old, pipeline, failing("ValueError: 2"), "old", 6.0, [(1.0, "note", "line")])
        found = last_error.read(pipeline)
        assert found is not None
        assert found["run"] == "new"
        new.write(plan_of(pipeline, 0, 1), {})  # the newer driver goes on
        assert new.latest() == plan_of(pipeline, 0, 1)


def test_driver_that_never_led_writes_no_error(bench: MakeBench) -> None:
    """It has no right to: another one may lead."""
    pipeline = bench().pipeline(ledger={"partitions": 1})
    with Ledger.of(pipeline) as ledger:
        last_error.write(ledger, pipeline, failing("ValueError: 1"), "ab", 5.0, [(1.0, "note", "line")])
    assert last_error.read(pipeline) is None
