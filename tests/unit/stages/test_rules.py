"""Counts of the rules: what each has checked, and when a rule stops the pipeline."""

from __future__ import annotations

import pyarrow as pa
import pytest

from support.rules import rules
from tailrace.errors import RuleBroken
from tailrace.stages.rules import aside, check, counts, stopping, tally, total

RULES = rules(
    {
        "priced": {"condition": "price IS NOT NULL", "severity": "stop", "ratio": 0.1, "minimum": 5},
        "cheap": {"condition": "price < 100", "severity": "warn"},
        "counted": "count > 0",
    }
)


def test_each_rule_has_checked_what_earlier_ones_left() -> None:
    """A rule that warns leaves all records to the next."""
    found = [(each.name, each.checked, each.broken) for each in counts(RULES, (100, 10, 30, 4))]
    assert found == [("priced", 100, 10), ("cheap", 90, 30), ("counted", 90, 4)]


def test_nothing_is_counted_of_a_task_that_skipped() -> None:
    """What was delivered before is not judged again."""
    assert total([(3, 1, 0, 1), (), (4, 0, 2, 0)]) == (7, 1, 2, 1)
    assert [each.checked for each in counts(RULES, total([]))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("judged", "stops"),
    [
        ((100, 10, 0, 0), False),  # a tenth is allowed
        ((100, 11, 0, 0), True),
        ((2, 1, 0, 0), False),  # half, and too few
        ((8, 5, 0, 0), True),
        ((1000, 0, 1000, 1000), False),  # the others cannot stop it
        ((0, 0, 0, 0), False),
        ((), False),
    ],
)
def test_rule_stops_beyond_its_ratio_and_its_minimum(judged: tuple[int, ...], stops: bool) -> None:
    """One bad record of two stops nothing."""
    assert counts(RULES, judged)[0].stops is stops
    if stops:
        with pytest.raises(RuleBroken):
            check(RULES, judged, 7, "orders-0:0-100")
    else:
        check(RULES, judged, 7, "orders-0:0-100")


def test_minimum_is_twenty_unless_set() -> None:
    """So a rule with only a ratio does not stop a pipeline because of a quiet hour."""
    plain = rules(a={"condition": "x", "severity": "stop", "ratio": 0.01})
    assert [counts(plain, (20, number))[0].stops for number in (19, 20)] == [False, True]


def test_ratio_of_one_never_stops() -> None:
    """It is the way to let a batch pass."""
    check(rules(a={"condition": "x", "severity": "stop", "ratio": 1}), (1000, 1000), 0, "")


def test_refusal_names_rule_ratio_counts_and_ways_out() -> None:
    """Whoever reads it at night knows what to do."""
    with pytest.raises(RuleBroken) as raised:
        check(RULES, (2000, 500, 0, 0), 7, "orders-0:0-2000")
    text = str(raised.value)
    for words in (
        "'priced'",
        "500 of 2,000 records",
        "0.25",
        "0.1",
        "`price IS NOT NULL`",
        "batch 7",
        "orders-0:0-2000",
    ):
        assert words in text
    assert "nothing of this batch was planned, delivered or rejected" in raised.value.kept
    assert "tailrace preview FILE" in raised.value.then
    assert "process.validate.priced.ratio: 1" in raised.value.then


def test_only_severity_stop_stops() -> None:
    """Without such a rule a batch is not read twice."""
    assert stopping(RULES)
    assert not stopping(rules(a="x", b={"condition": "y", "severity": "warn"}))


def test_broken_rules_are_counted_by_number() -> None:
    """Records that could not be decoded were judged by no rule."""
    broken = pa.array([[0], None, [1, 2], [-1], []], pa.list_(pa.int32()))
    assert tally(broken, 5, 3) == (4, 1, 1, 1)


def test_gate_accepts_rows_that_only_break_warnings() -> None:
    """Rejected rows are taken out; what was rejected before the rules has none that it broke."""
    row = pa.struct([("value", pa.binary()), ("reason", pa.string()), ("broken", pa.list_(pa.int32()))])
    rows = pa.array(
        [
            None,
            {"value": None, "reason": None, "broken": [1]},
            {"value": b"x", "reason": "counted", "broken": [1, 2]},
            {"value": b"y", "reason": "not json", "broken": None},
        ],
        row,
    )
    accepted, rejected, broken = aside(rows)
    assert accepted.to_pylist() == [True, True, False, False]
    assert rejected.field("value").to_pylist() == [b"x", b"y"]
    assert tally(broken, 4, 3) == (3, 0, 2, 1)
