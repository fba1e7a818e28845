"""Changes that an owner makes while a pipeline runs, is down, or has just crashed in mid-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from faults.bytest import by_test
from faults.driven import Driven, Shape, driven
from faults.proof import Strike, by_fault
from faults.scenario import Context, Expect, Result, Scenario
from tailrace.crash_points import Crash, Point, Victim
from tailrace.testing import wait_until

OTHER = """
from pyspark.sql import functions as F


def plain(frame):
    longer = F.concat("value", F.lit(bytearray(b"the other code")))
    return frame.select(F.col("kafka.key").alias("key"), longer.alias("value"))
"""


UNSPLIT: dict[str, Any] = {"partitions": None}  # the section `source`: no range is split, so order is promised


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Add partitions to a topic, and wait until all have a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for each in admin.create_partitions([NewPartitions(topic, total)]).values():
        each.result(30)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(found) == total and all(each.leader >= 0 for each in found.values())

    wait_until(led, f"{total} partitions of {topic}", 30)


def grow_input(one: Driven) -> None:
    """Add two source partitions with as many records each.

    They are read last and alone, when `source.partitions` would split their ranges; so it is unset.
    """
    one.configure(source=UNSPLIT)
    more = one.shape.partitions + 2
    add_partitions(one.context.bootstrap, one.source, more)
    one.feed(partitions=2, first=one.shape.partitions)


def grow_output(one: Driven) -> None:
    """Add output partitions; keys go to other partitions from now on."""
    add_partitions(one.context.bootstrap, one.sink, one.shape.outputs + 3)


def other_code(one: Driven) -> None:
    """Change the function; each record still comes out once, by the old code or the new."""
    (one.folder / "plain.py").write_text(OTHER)


def fewer_sinks(one: Driven) -> None:
    """Set two sink partitions instead of the default."""
    one.configure(sink={"partitions": 2})


def while_running(context: Context) -> list[Result]:
    """Add partitions to input and output under a running driver."""
    changes: list[tuple[str, Callable[[Driven], None]]] = [
        ("partitions added to the input while it runs", grow_input),
        ("partitions added to the output while it runs", grow_output),
    ]
    rows: list[Result] = []
    for fault, change in changes:
        with driven(context, _shape(context), source=UNSPLIT) as one:
            one.start()
            one.follow(lambda one=one: one.batches.written >= 1, "the second batch")  # type: ignore[misc]
            change(one)
            batch = one.batches.written + 1
            one.drain()
            one.stop()
            rows += _proved(one, [Strike(fault, batch)])
    return rows


def after_a_crash(context: Context) -> list[Result]:
    """Kill the process tree in mid-batch, then make a change before the next start, which finishes that batch."""
    changes: list[tuple[str, Callable[[Driven], None]]] = [
        ("partitions added to the input between a crash and its replay", grow_input),
        ("partitions added to the output between a crash and its replay", grow_output),
        ("the function's code changed between a crash and its replay", other_code),
    ]
    rows: list[Result] = []
    for fault, change in changes:
        crashes = [Crash(Point.COMMIT_SENT, batch=2, partition=1, kills=Victim.TREE)]
        with driven(context, _shape(context), crashes=crashes) as one:
            one.before_start = lambda one=one, change=change: change(one)
            one.start(changed=False)
            one.drain()
            one.stop()
            rows += _proved(one, [Strike(fault, 2)])
    return rows


def between_runs(context: Context) -> list[Result]:
    """Change the parallelism after a clean stop, and change it back."""
    strikes: list[Strike] = []
    with driven(context, _shape(context, times=2)) as one:
        one.start()
        one.follow(lambda: one.batches.written >= 1, "the second batch")
        for change in (fewer_sinks, lambda one: one.configure(sink={"partitions": None})):
            one.stop()
            change(one)
            strikes.append(Strike("parallelism changed between two runs", one.batches.written + 1))
            one.start()
            before = one.batches.written
            one.follow(lambda before=before: one.batches.written > before or one.drained(), "a batch")  # type: ignore[misc]
        one.drain()
        one.stop()
        return _proved(one, strikes)


def _shape(context: Context, times: int = 1) -> Shape:
    return Shape(20_000 if context.quick else 200_000, 6 * times)


def _proved(one: Driven, strikes: Sequence[Strike]) -> list[Result]:
    proof = one.prove()
    one.context.say(str(proof))
    return by_fault(proof, one.cuts(), strikes)


WAYS_OUT = "tests/integration/test_ways_out.py"
REFUSED = {
    "tests/integration/test_ledger.py::test_deleted_ledger_is_refused_while_its_markers_exist": (
        "ledger topic deleted while it is down"
    ),
    "tests/integration/test_ledger.py::test_recreated_ledger_topic_is_refused": "ledger topic deleted and recreated",
    "tests/integration/test_ledger.py::test_markers_ahead_of_the_last_plan_are_refused": (
        "ledger restored from an older copy"
    ),
    "tests/integration/test_refusals.py::test_offsets_out_of_range_are_reported_and_never_skipped_silently": (
        "input's records deleted before they were read"
    ),
    "tests/integration/test_refusals.py::test_topic_deleted_while_the_pipeline_is_down_is_reported": (
        "input topic deleted while it is down"
    ),
    "tests/integration/test_refusals.py::test_topic_deleted_while_the_pipeline_runs_stops_it": (
        "input topic deleted while it runs"
    ),
    f"{WAYS_OUT}::test_batch_that_would_be_cut_differently_is_finished_with_its_previous_settings": (
        "a shuffle's partitions changed between a crash and its replay"
    ),
}
KEPT = {
    "tests/integration/test_delivery.py::test_open_batch_keeps_the_partitions_of_its_plan_whatever_the_settings": (
        "parallelism changed between a crash and its replay"
    ),
}
EXPIRED = {
    "tests/integration/test_expiry.py::test_expired_marker_next_to_a_live_one_is_refused": (
        "downtime beyond the markers' retention, one of them expired"
    ),
    "tests/integration/test_expiry.py::test_open_batch_without_markers_is_refused_when_they_may_have_expired": (
        "downtime beyond the markers' retention, all of them expired"
    ),
}

SCENARIOS = (
    Scenario("change-running", "Change", "promised", while_running, quick=False),
    Scenario("change-crashed", "Change", "promised", after_a_crash, quick=False),
    Scenario("change-between", "Change", "promised", between_runs, quick=False),
    by_test("change-cut", "Change", "promised", KEPT),
    by_test("refused", "Refused, as promised", "promised", REFUSED, expect=Expect.REFUSED),
    by_test("expired", "Refused, as promised", "promised", EXPIRED, expect=Expect.REFUSED),
)
