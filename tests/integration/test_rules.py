"""Data contracts: rules that reject, warn and stop, with the same result on DataFrames and on Arrow batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from support.pipelines import Bench, events_of
from support.threads import Line
from tailrace import errors
from tailrace.admin.offsets import look
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]

SOURCE = {"format": "json", "schema": "n INT, price DOUBLE"}
RULES: dict[str, Any] = {
    "priced": {"condition": "price IS NOT NULL", "severity": "stop", "ratio": 0.2, "minimum": 4},
    "cheap": {"condition": "price < 10", "severity": "warn"},
    "counted": "n > 0",
}
UNCHANGED = """
import pyarrow as pa

def unchanged(batches):
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column("n"), batch.column("price")], names=["n", "price"])
"""


def order(n: int, price: float | None = 1.0) -> bytes:
    """Return a record."""
    return json.dumps({"n": n, **({} if price is None else {"price": price})}).encode()


GOOD = [order(number) for number in range(1, 11)]
MIXED = [order(1, 50), order(2, None), order(0), b"nonsense", order(-1, 20)]


def filled(one: Bench | Line) -> None:
    """Put good and bad records into two source partitions: of 15 judged ones, one has no price."""
    one.send([*GOOD, *MIXED], 0)
    one.send([order(11)], 1)


def numbers(values: list[Any]) -> list[int]:
    """Return the numbers of delivered orders."""
    return sorted(json.loads(value)["n"] for value in values)


@pytest.mark.takes(12)
@pytest.mark.parametrize("shuffled", [False, True])
def test_rules_reject_warn_and_are_counted_on_dataframes(bench: MakeBench, shuffled: bool) -> None:
    """Also where the tasks that judge are not those that write."""
    one = bench(partitions=2)
    filled(one)
    one.write("pass.py", "def passed(frame):\n    return frame.select('n', 'price')\n")
    process = {"validate": RULES, "function": "pass.py:passed", **({"partitions": 2} if shuffled else {})}
    events = one.run(source=SOURCE, process=process, sink={"format": "json"})
    assert numbers(one.values()) == [1, 1, *range(2, 12)]
    reasons = sorted((headers["tailrace.reason"] or b"").decode() for _, headers in one.rejected())
    assert reasons == ["counted", "counted", "not json", "priced"]
    broken: dict[str, int] = {}
    for event in events_of(events, "written"):
        for name, number in event["broken"].items():
            broken[name] = broken.get(name, 0) + number
    assert broken == {"priced": 1, "cheap": 2, "counted": 2}


def test_rules_reject_warn_and_are_counted_on_arrow_batches(line: MakeLine) -> None:
    """The records, reasons and counts are those of DataFrames, without a JVM."""
    one = line()
    filled(one)
    (one.folder / "pass_rows.py").write_text(UNCHANGED)
    process = {"validate": RULES, "arrow": "pass_rows.py:unchanged"}
    (event,) = events_of(one.run(source=SOURCE, process=process, sink={"format": "json"}), "written")
    assert numbers(one.values()) == [1, 1, *range(2, 12)]
    assert one.rejected() == sorted([order(2, None), order(0), b"nonsense", order(-1, 20)])
    assert event["broken"] == {"priced": 1, "cheap": 2, "counted": 2}
    (batch,) = one.finished
    assert batch.judged == (15, 1, 2, 2)


def bad(count: int) -> list[bytes | None]:
    """Return records without a price."""
    return [order(number, None) for number in range(100, 100 + count)]


def stopped(one: Bench | Line, **sections: Any) -> errors.RuleBroken:
    """Run into the rule that stops, and check that nothing came of the batch."""
    with pytest.raises(errors.RuleBroken) as caught:
        one.run(**sections)
    assert "'priced'" in caught.value.what
    assert "break the rule" in caught.value.what
    return caught.value


@pytest.mark.takes(15)
def test_rule_stops_a_pipeline_before_anything_of_the_batch(bench: MakeBench) -> None:
    """No sink partition is written, also not the one whose records are good, and no batch is open."""
    one = bench(partitions=2)
    one.send(list(GOOD), 0)
    one.send(bad(8), 1)
    sections: dict[str, Any] = {"source": SOURCE, "process": {"validate": RULES}, "sink": {"format": "json"}}
    problem = stopped(one, **sections)
    assert "8 of 18 records" in problem.what
    assert f"{one.source}-1" in problem.what
    assert (one.values(), one.rejected()) == ([], [])
    stopped(one, **sections)  # as it is at every start, until somebody does something
    # The way out "let them go to the rejected topic".
    passing = {**RULES, "priced": {**RULES["priced"], "ratio": 1}}
    one.run(**{**sections, "process": {"validate": passing}})
    assert numbers(one.values()) == list(range(1, 11))
    assert len(one.rejected()) == 8
    # Few bad records among many do not stop it, and neither do too few to judge by.
    one.send([order(n) for n in range(20, 60)], 0)
    one.send(bad(5), 1)
    one.run(**sections)
    one.send(bad(3), 1)
    one.run(**sections)
    assert len(one.values()) == 50
    assert len(one.rejected()) == 16


@pytest.mark.parametrize(
    ("priced", "written", "rejected"),
    [
        ({"condition": "price IS NULL OR price > 0", "severity": "stop", "ratio": 0.2}, 18, 0),
        ({"condition": "price IS NOT NULL", "severity": "reject"}, 10, 8),
        ({"condition": "price IS NOT NULL", "severity": "warn"}, 18, 0),
        ({"condition": "price IS NOT NULL", "severity": "stop", "ratio": 1}, 10, 8),
    ],
)
def test_stopped_pipeline_continues_once_the_rule_is_mended(
    line: MakeLine, priced: dict[str, Any], written: int, rejected: int
) -> None:
    """Each way out that the message names leads out, and no record is lost or delivered twice."""
    one = line()
    one.send(list(GOOD), 0)
    one.send(bad(8), 1)
    (one.folder / "pass_rows.py").write_text(UNCHANGED)
    sections: dict[str, Any] = {"source": SOURCE, "sink": {"format": "json"}}
    arrow = {"arrow": "pass_rows.py:unchanged"}
    stopped(one, process={**arrow, "validate": RULES}, **sections)
    assert (one.values(), one.rejected()) == ([], [])
    one.run(process={**arrow, "validate": {**RULES, "priced": priced}}, **sections)
    assert (len(one.values()), len(one.rejected())) == (written, rejected)
    one.run(process={**arrow, "validate": {**RULES, "priced": priced}}, **sections)
    assert (len(one.values()), len(one.rejected())) == (written, rejected)


def test_stopped_pipeline_has_no_open_batch(line: MakeLine) -> None:
    """So its offsets can be moved past the bad records without giving anything up."""
    one = line()
    one.send([order(1)], 0)
    (one.folder / "pass_rows.py").write_text(UNCHANGED)
    sections: dict[str, Any] = {
        "source": SOURCE,
        "process": {"validate": RULES, "arrow": "pass_rows.py:unchanged"},
        "sink": {"format": "json"},
    }
    one.run(**sections)
    one.send(bad(8), 1)
    stopped(one, **sections)
    pipeline = one.pipeline(**sections)
    with Ledger.of(pipeline) as ledger:
        now = look(pipeline, Cluster(pipeline.kafka), ledger, open_store(pipeline, one.folder))
    assert (now.state, replace(now, markers={}).undelivered) == ("stopped", [])


@pytest.mark.takes(15)
def test_rule_stops_a_stateful_pipeline_before_anything_of_the_batch(bench: MakeBench) -> None:
    """Spark plans its batches, and brings the same one again; a mended ratio lets it pass, each record once."""
    one = bench()
    one.send([*GOOD, *bad(8)], 0)
    one.write("first.py", "def first(frame):\n    return frame.dropDuplicates(['n']).select('n')\n")
    sections: dict[str, Any] = {
        "source": {**SOURCE, "partitions": None},
        "sink": {"format": "json"},
        "checkpoint": f"file://{one.folder / 'state'}",
    }
    function = {"function": "first.py:first"}
    problem = stopped(one, process={**function, "validate": RULES}, **sections)
    assert "8 of 18 records" in problem.what
    assert (one.values(), one.rejected()) == ([], [])
    events = one.run(process={**function, "validate": {**RULES, "priced": {**RULES["priced"], "ratio": 1}}}, **sections)
    assert numbers(one.values()) == list(range(1, 11))
    assert len(one.rejected()) == 8
    assert [each["broken"] for each in events_of(events, "written")] == [{"priced": 8}]
