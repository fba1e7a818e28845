"""Which calls of `exactly_once` would be mixed up under one name."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tailrace.errors import OptionRefused
from tailrace.spark_stream.sink_calls import Call, Calls, bare_errors, check

LAST = Call("sink", "query", "run", 3)


@pytest.mark.parametrize(
    ("last", "now", "active"),
    [
        (None, LAST, False),
        (replace(LAST, failed=True), LAST, False),  # repeated after a failure
        (LAST, replace(LAST, batch=4), False),
        (LAST, replace(LAST, sink="other", batch=4), False),  # made for each batch
        (LAST, replace(LAST, run="next"), False),  # Spark brings the batch again
        (LAST, replace(LAST, sink="other", run="next"), False),
    ],
)
def test_call_that_is_known_from_the_last_one_is_accepted(last: Call | None, now: Call, active: bool) -> None:
    """It is for another batch, or by the ledger a replay."""
    check("p", last, now, active=active)


@pytest.mark.parametrize(
    ("last", "now", "active"),
    [
        (LAST, LAST, False),  # the first is done, or still writes in another thread
        (LAST, replace(LAST, sink="other"), False),
        (replace(LAST, failed=True), replace(LAST, sink="other"), False),  # the function caught the failure
        (LAST, replace(LAST, query="another", run="another"), True),
        (LAST, replace(LAST, query="another", run="another", sink="other", batch=9), True),
    ],
)
def test_call_that_the_ledger_would_mix_up_is_refused(last: Call, now: Call, active: bool) -> None:
    """Its rows would be skipped as those of the last call."""
    with pytest.raises(OptionRefused, match="'p'"):
        check("p", last, now, active=active)


def test_refused_call_leaves_the_name_to_the_active_query() -> None:
    """The active query's next batch is accepted, and so is another query's once the first has ended."""
    calls, other = Calls(), Call("other", "another", "another", 0)
    calls.begin(("kafka", "p"), LAST, lambda last: True)
    with pytest.raises(OptionRefused):
        calls.begin(("kafka", "p"), other, lambda last: True)
    calls.begin(("kafka", "p"), replace(LAST, batch=4), lambda last: True)
    calls.begin(("elsewhere", "p"), other, lambda last: True)
    calls.begin(("kafka", "p"), other, lambda last: False)


def test_call_that_fails_late_does_not_undo_the_one_that_has_begun_since() -> None:
    """The newer query could then call its sink twice for a batch, and the rows of the second be skipped."""
    calls, newer = Calls(), replace(LAST, run="next")
    calls.begin(("kafka", "p"), LAST, lambda last: True)
    calls.begin(("kafka", "p"), newer, lambda last: False)
    calls.fail(("kafka", "p"), LAST)
    with pytest.raises(OptionRefused, match="called twice"):
        calls.begin(("kafka", "p"), newer, lambda last: True)
    calls.fail(("kafka", "p"), newer)
    calls.begin(("kafka", "p"), newer, lambda last: True)


def test_error_that_leaves_refers_to_no_variables_even_if_its_causes_form_a_circle() -> None:
    """Spark keeps the error of a query, and a Kafka client is among the variables of its frames."""

    def fails() -> None:
        client = threading.Lock()
        first, second = KeyError("a"), OSError(str(client))
        first.__context__ = second
        raise second from first

    with pytest.raises(OSError, match="lock") as caught, bare_errors():
        fails()
    assert caught.traceback[-1].frame.f_locals == {}
