"""A plan says what each sink partition reads, and a replay that would read something else is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.driver.recovery import repeatable
from tailrace.errors import CutChanged, LedgerUnusable
from tailrace.progress.plan import BatchId, Plan, Range, SinkPartition
from tailrace.progress.stream_plan import REDIRECTED, UNNAMED, VERSION, Slice, StreamPlan, assign, read

names = st.text("abcXYZ09._-", min_size=1, max_size=20)
ranges = st.builds(
    lambda topic, number, start, size: Range(topic, number, start, start + size),
    names,
    st.integers(0, 999),
    st.integers(0, 10**12),
    st.integers(0, 10**6),
)


def plan_of(*slices: str) -> StreamPlan:
    """Return a plan whose sink partitions read these slices."""
    return StreamPlan("orders", "q-1", BatchId(7), (), tuple(Slice(each) for each in slices), "v1\n{}\n{}")


@given(ranges)
def test_a_range_is_read_back_from_its_text(span: Range) -> None:
    """Topics may contain dashes, dots and digits, and are still separated from the partition."""
    assert Range.parse(str(span)) == span


@given(st.lists(ranges, max_size=5).map(tuple), st.lists(names.map(Slice), max_size=5).map(tuple))
def test_a_plan_is_read_back_from_the_ledger(spans: tuple[Range, ...], slices: tuple[Slice, ...]) -> None:
    """The next driver reads what this driver wrote."""
    plan = dataclasses.replace(plan_of(), ranges=spans, slices=slices)
    for each in (plan, dataclasses.replace(plan, settings={"spark.sql.session.timeZone": "UTC"})):
        assert StreamPlan.of(json.loads(each.to_bytes()), "here") == each


def test_plan_that_was_changed_by_hand_is_refused() -> None:
    """The digest notices another slice."""
    data = json.loads(plan_of("t-0:0-5", "t-1:0-5").to_bytes())
    data["slices"][0] = "t-0:0-6"
    with pytest.raises(LedgerUnusable, match="digest does not fit"):
        StreamPlan.of(data, "ledger-3 offset 12")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"null", b"[1]", b"\xff", b'{"version": 1}', b'{"version": 2}', b"\x02zno"]
)
def test_a_record_that_is_not_a_plan_is_refused_with_its_place(text: bytes) -> None:
    """The error says where in the ledger the foreign record is."""
    with pytest.raises(LedgerUnusable, match="ledger-3 offset 12"):
        read(text, "ledger-3 offset 12")


def test_plan_of_a_newer_version_is_refused() -> None:
    """An old Tailrace does not guess what a new one meant."""
    data = json.loads(plan_of().to_bytes()) | {"version": REDIRECTED + 1}
    with pytest.raises(LedgerUnusable, match=f"version {REDIRECTED + 1}"):
        read(json.dumps(data).encode(), "here")


@pytest.mark.parametrize(
    ("new", "mixes", "reads", "differs"),
    [
        ({"code": "new"}, True, (), True),  # the code decides what a sink partition behind a shuffle gets
        ({"code": "new"}, False, (Range("t", 0, 0, 5),), False),
        ({"rules": "new"}, True, (), True),
        ({"rules": "new"}, False, (Range("t", 0, 0, 5),), True),  # they move a record from output to rejected
        ({"rules": "new"}, False, (), False),
    ],
)
def test_digest_names_what_divides_the_records_of_a_stateful_batch(
    new: dict[str, str], mixes: bool, reads: tuple[Range, ...], differs: bool
) -> None:
    """Two codes never take one another's marker for their own, except where the code does not matter."""
    old = dataclasses.replace(plan_of("#0", "#1"), code="old", rules="old", mixes=mixes, reads=reads)
    assert (dataclasses.replace(old, **new).digest != old.digest) is differs  # type: ignore[arg-type]


def test_plan_whose_digest_does_not_name_the_code_is_read_and_keeps_its_digest() -> None:
    """An open batch of an earlier build is finished: its markers have that digest."""
    old = dataclasses.replace(plan_of("#0"), code="c", mixes=True, version=UNNAMED)
    assert read(old.to_bytes(), "here") == old
    assert dataclasses.replace(old, code="d").digest == old.digest


@given(st.permutations(["t-0:0-5", "t-1:0-5", "t-2:3-9", "#4"]))
def test_sink_partitions_follow_their_slices_and_not_sparks_numbering(now: list[str]) -> None:
    """In whatever order Spark lists its tasks after a restart, each gets the sink partition of its slice."""
    plan = plan_of("t-0:0-5", "t-1:0-5", "t-2:3-9", "#4")
    chosen = assign(plan, tuple(Slice(each) for each in now))
    assert [plan.slices[number] for number in chosen] == now


def test_two_tasks_that_read_the_same_keep_their_order() -> None:
    """The function's branch and the branch of the rejected records both read a range; the first stays the first."""
    plan = plan_of("t-0:0-5", "t-1:0-5", "t-0:0-5", "t-1:0-5")
    now = tuple(Slice(each) for each in ("t-1:0-5", "t-0:0-5", "t-1:0-5", "t-0:0-5"))
    assert assign(plan, now) == (1, 0, 3, 2)


def test_ranges_that_one_task_reads_are_known_in_any_order() -> None:
    """Spark merges tasks in its own order, and plans of earlier versions name their ranges in it."""
    plan = plan_of("t-1:0-5+t-0:0-5", "t-2:0-5+t-10:0-5+t-3:0-5")
    now = (Slice("t-10:0-5+t-2:0-5+t-3:0-5"), Slice("t-0:0-5+t-1:0-5"))
    assert assign(plan, now) == (1, 0)
    with pytest.raises(CutChanged, match=r"missing now: t-10:0-5\+t-2:0-5\+t-3:0-5; new: t-2:0-5"):
        assign(plan, (Slice("t-2:0-5"), now[1]))


@pytest.mark.parametrize(
    "now", [("t-0:0-5",), ("t-0:0-5", "t-1:0-6"), ("t-0:0-5", "t-1:0-5", "t-2:0-1"), ("t-0:0-5+t-1:0-5",)]
)
def test_another_cut_is_refused_with_both_cuts_named(now: tuple[str, ...]) -> None:
    """With fewer, more, merged or other slices, the batch cannot be replayed exactly."""
    with pytest.raises(CutChanged, match="batch 7 of 'orders' was planned with 2 sink partitions"):
        assign(plan_of("t-0:0-5", "t-1:0-5"), tuple(Slice(each) for each in now))


def test_the_digest_distinguishes_batches_queries_and_cuts() -> None:
    """A marker of one plan is never taken for another's."""
    plan = plan_of("a", "b")
    others = [
        dataclasses.replace(plan, batch=BatchId(8)),
        dataclasses.replace(plan, query="q-2"),
        dataclasses.replace(plan, pipeline="other"),
        dataclasses.replace(plan, slices=(Slice("b"), Slice("a"))),
    ]
    assert len({each.digest for each in [plan, *others]}) == 5
    assert dataclasses.replace(plan, run="again", at=5.0).digest == plan.digest


def own_plan(**changes: object) -> Plan:
    """Return a plan of two sink partitions, with changes."""
    parts = ((Range("in", 0, 0, 5), Range("in", 2, 1, 2)), (Range("in", 1, 7, 9),))
    plan = Plan("orders", BatchId(7), "out", {"in": "id-1"}, parts, 2, {("in", 0): 5, ("in", 1): 9, ("in", 2): 2})
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def test_own_plan_is_read_back_from_the_ledger() -> None:
    """This holds whatever it contains, also if it is noted as done at other positions."""
    bounded = own_plan(until={("in", 0): 5, ("in", 1): 20}, away={"id-h": {("hidden", 0): 7}})
    judged = own_plan(shuffles=True, judges=True, outputs=3)
    judged = dataclasses.replace(judged, settings={"spark.sql.session.timeZone": "UTC"})
    for plan in (own_plan(), judged, own_plan().finished({("in", 0): 2}), bounded, bounded.finished()):
        assert read(plan.to_bytes(), "here") == plan


def test_large_plan_is_compressed_and_read_back() -> None:
    """Five thousand ranges stay far below the megabyte that brokers accept."""
    parts = tuple((Range("a-long-topic-name", number, 10**9, 10**9 + number),) for number in range(5000))
    plan = own_plan(parts=parts, outputs=5000, ends={each.place: each.end for part in parts for each in part})
    assert len(plan.to_bytes()) < 200_000
    assert read(plan.to_bytes(), "here") == plan


@pytest.mark.parametrize(
    "change",
    [
        {"sink": "other"},
        {"topics": {"in": "id-2"}},
        {"batch": BatchId(8)},
        {"outputs": 3},
        {"shuffles": True},
        {"judges": True},
        {"parts": ((Range("in", 0, 0, 5),), (Range("in", 1, 7, 9), Range("in", 2, 1, 2)))},
    ],
)
def test_own_digest_changes_with_everything_that_exactness_relies_on(change: dict[str, object]) -> None:
    """Another sink, another topic of the same name or another grouping gives another digest."""
    assert own_plan(**change).digest != own_plan().digest


def test_own_plan_that_was_changed_by_hand_is_refused() -> None:
    """The digest notices another range."""
    text = own_plan().to_bytes().replace(b"[7,9]", b"[7,8]")
    with pytest.raises(LedgerUnusable, match="digest does not fit"):
        read(text, "ledger-3 offset 12")


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_function_decides_what_numbered_sink_partitions_get_unless_the_shuffle_is_tailraces(
    mixes: bool, spread: bool
) -> None:
    """Earlier versions did not say whose shuffle it is, and took some of the function's for none."""
    numbered = dataclasses.replace(plan_of("#0", "#1"), mixes=mixes, spread=spread)
    assert numbered.cut_by_code is (mixes or not spread)
    assert dataclasses.replace(numbered, slices=plan_of("t-0:0-5").slices).cut_by_code is mixes


def test_changed_code_is_refused_behind_a_shuffle_that_an_earlier_version_did_not_recognise() -> None:
    """Its plan says that the function does not shuffle, but its sink partitions are numbered."""
    data = json.loads(dataclasses.replace(plan_of("#0", "#1"), code="a").to_bytes())
    del data["spread"]
    plan = StreamPlan.of(data, "here")
    plan.check_repeatable("", "a")
    with pytest.raises(CutChanged, match="function shuffles"):
        plan.check_repeatable("", "b")
    assert not repeatable(plan, "", "b")


def test_plan_of_an_earlier_version_keeps_its_digest_under_the_same_code() -> None:
    """It has noted no settings. A task of its driver may still write, and its marker must not be another plan's."""
    begun = dataclasses.replace(plan_of("#0", "#1"), rules="r", code="c", mixes=True, version=UNNAMED)
    now = begun.delivered_by("r", "c", {"source.isolation": "read_committed"}, mixes=True)
    assert (now.digest, now.version) == (begun.digest, UNNAMED)
    assert begun.delivered_by("r", "d", None, mixes=True).digest != begun.digest


def test_plan_names_the_shuffles_that_its_batch_was_begun_with() -> None:
    """The numbers of a shuffle's partitions are the same whatever its keys are, so a marker names the keys too."""
    by_id = dataclasses.replace(plan_of("#0", "#1"), mixes=True, cut=("hashpartitioning(id, 2)",))
    assert StreamPlan.of(json.loads(by_id.to_bytes()), "here") == by_id
    by_user = by_id.delivered_by("", "", None, mixes=True, cut=("hashpartitioning(user, 2)",))
    assert by_user.digest != by_id.digest
    by_id.check_cut(by_id.cut)
    with pytest.raises(CutChanged, match=r"with the shuffles hashpartitioning\(id, 2\);.*hashpartitioning\(user, 2\)"):
        by_id.check_cut(by_user.cut)


def test_plan_of_an_earlier_version_is_finished_by_the_same_shuffles() -> None:
    """It does not tell columns of one name apart; its markers name the shuffles as it has them."""
    begun = dataclasses.replace(plan_of("#0", "#1"), mixes=True, cut=("hashpartitioning(id, 2)",))
    now = ("hashpartitioning(id~2, 2)",)
    begun.check_cut(now)
    assert begun.delivered_by("", "", None, mixes=True, cut=now).digest == begun.digest
    planned = dataclasses.replace(begun, cut=now)
    with pytest.raises(CutChanged, match=r"shuffles hashpartitioning\(id~2, 2\);.*hashpartitioning\(id~1, 2\)"):
        planned.check_cut(("hashpartitioning(id~1, 2)",))


def test_plan_that_another_sink_delivers_is_not_for_earlier_versions() -> None:
    """They would take it for damaged; its version says which one to run. Its markers are not those of before."""
    begun = dataclasses.replace(plan_of("#0", "#1"), sink="a")
    now = dataclasses.replace(begun, sink="b", version=REDIRECTED)
    assert now.digest not in {begun.digest, dataclasses.replace(now, sink="c").digest}
    assert read(now.to_bytes(), "here") == now
    assert json.loads(now.to_bytes())["version"] > VERSION


def test_plan_that_names_no_shuffles_is_finished_and_keeps_its_digest() -> None:
    """An earlier version did not note them, and tasks of its driver may still run."""
    begun = dataclasses.replace(plan_of("#0", "#1"), mixes=True)
    assert "cut" not in json.loads(begun.to_bytes())
    begun.check_cut(("hashpartitioning(user, 2)",))
    assert begun.delivered_by("", "", None, mixes=True, cut=("hashpartitioning(user, 2)",)) == begun
    changed = begun.delivered_by("", "new", None, mixes=True, cut=("hashpartitioning(user, 2)",))
    assert changed.cut == ("hashpartitioning(user, 2)",)


def two_parts(*, shuffles: bool) -> Plan:
    """Return the plan of a batch of two parts and two sink partitions."""
    parts = ((Range("a", 0, 0, 5),), (Range("b", 0, 3, 9),))
    return Plan("p", BatchId(7), "out", {"a": "1", "b": "2"}, parts, 2, {("a", 0): 5, ("b", 0): 9}, shuffles=shuffles)


def test_rest_of_a_batch_reads_what_is_not_delivered_under_the_same_digest() -> None:
    """Its sink partitions keep their numbers, and its markers name the plan that the ledger holds."""
    whole = two_parts(shuffles=False)
    rest = whole.rest([SinkPartition(1)])
    assert rest.parts == (whole.parts[0], ())
    assert (rest.digest, rest.sinks, rest.ends) == (whole.digest, whole.sinks, whole.ends)
    assert rest.delivered == {1}
    assert [each.open for each in (whole, rest)] == [(0, 1), (0,)]
    assert whole.rest([]) == whole


def test_rest_of_a_batch_behind_a_shuffle_reads_everything() -> None:
    """A sink partition that is left may hold rows of every range."""
    whole = two_parts(shuffles=True)
    assert whole.rest([SinkPartition(1)]) == whole
