"""Faulty records: how the batch is divided to find them, and what becomes of them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.engine import NO_FAULTS, WAYS, Cut, Faults, Parts
from tailrace.driver.faulty import Fault, Part, Tolerant, by_place, search, split, told
from tailrace.gateway import Written
from tailrace.progress.plan import BatchId, Plan, Range, SinkPartition
from tailrace.stages.rules import Judged
from tailrace.status.fault_search import FaultSearch, announced

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=12)


def ranges_of(spans: list[tuple[int, int]]) -> tuple[Range, ...]:
    """Return one range for each partition."""
    return tuple(Range("in", number, start, start + size) for number, (start, size) in enumerate(spans))


def offsets(ranges: tuple[Range, ...]) -> list[tuple[int, int]]:
    """Return every partition and offset."""
    return [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]


@given(SPANS)
def test_parts_hold_every_offset_once_and_in_order(spans: list[tuple[int, int]]) -> None:
    """None is left out, and there are no more parts than are tried at once."""
    ranges = ranges_of(spans)
    parts = split(ranges, WAYS)
    assert len(parts) <= WAYS
    assert [each for part in parts for each in offsets(part)] == offsets(ranges)


@given(SPANS, st.data())
def test_faulty_record_is_found_wherever_it_is(spans: list[tuple[int, int]], data: Any) -> None:
    """So are all others, or as many as are wanted."""
    ranges = ranges_of(spans)
    if not offsets(ranges):
        return
    bad = data.draw(st.sets(st.sampled_from(offsets(ranges)), min_size=1, max_size=3))

    def failing(parts: list[Part]) -> list[tuple[Part, str]]:
        return [(part, "function 'f.py:f': ValueError: no") for part in parts if bad & set(offsets(part))]

    every = search(ranges, failing, 10)
    assert {(each.place[1], each.offset) for each in every} == bad
    assert {each.why for each in every} == {"ValueError: no"}
    assert len(search(ranges, failing, 1)) == 1


def test_error_that_does_not_come_again_blames_no_record() -> None:
    """An executor was lost, say."""
    assert search((Range("in", 0, 0, 100),), lambda parts: [], 1) == []


class Raising:
    """An engine whose function raises at some offsets."""

    slots = 1
    cut = Cut()
    planning = ("kept", ())
    observed: Mapping[str, Mapping[str, float]] = {}

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.deliveries = 0

    def fits(self, plan: Plan) -> bool:
        """Return whether there is no shuffle."""
        return self.cut.fits(plan)

    def deliver(
        self,
        plan: Plan,
        owners: Mapping[SinkPartition, str],
        gone: frozenset[str] = frozenset(),
        faults: Faults = NO_FAULTS,
        seen: Parts = frozenset(),
    ) -> list[Written]:
        """Deliver, unless there is a faulty record that is not known yet."""
        self.deliveries += 1
        if self.probe(plan, plan.ranges, faults, 0):
            raise errors.FunctionFailed("function 'f.py:f': ValueError: no")
        return [Written(SinkPartition(0), skipped=False)]

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """Raise at the faulty offsets that are not known yet."""
        known = {offset for each in faults.values() for offset in each}
        left = {offset for _, offset in offsets(part)} & self.bad - known
        return "function 'f.py:f': ValueError: no" if left else None

    def judge(self, plan: Plan, faults: Faults = NO_FAULTS) -> Judged:
        """Count the records, with one rule that none breaks; raise as deliver does."""
        if self.probe(plan, plan.ranges, faults, 0):
            raise errors.QueryFailed("DIVIDE_BY_ZERO")
        return plan.records - sum(map(len, faults.values())), 0

    def cancel(self) -> None:
        """Do nothing."""


def tolerant(engine: Raising, **process: Any) -> Tolerant:
    """Return the engine with a pipeline whose function may raise."""
    given_ = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}}
    pipeline = Pipeline.model_validate({**given_, "process": {"function": "f.py:f", **process}})
    return Tolerant(engine, pipeline, lambda: True)


PLAN = Plan("p", BatchId(7), "out", {}, ((Range("in", 0, 0, 1000),),), 1, {("in", 0): 1000})


def test_pipeline_stops_at_a_faulty_record_and_names_it() -> None:
    """The error has its offset and the two ways to go on."""
    with pytest.raises(errors.FunctionFailed, match="ValueError: no; at in-0, offset 345, in batch 7") as caught:
        tolerant(Raising(345)).deliver(PLAN, {})
    assert caught.value.then == "fix the function, or set process.on_error: reject; then start again"


def test_faulty_records_are_found_together_and_rejected() -> None:
    """All are found, and then the batch is delivered without them."""
    engine = Raising(3, 500, 501, 999)
    one = tolerant(engine, on_error="reject")
    one.deliver(PLAN, {})
    assert sorted(each.offset for each in one.rejected) == [3, 500, 501, 999]
    assert engine.deliveries == 2
    one.deliver(PLAN, {})  # the next batch begins without them
    assert len(one.rejected) == 4


class TableAway(Raising):
    """An engine whose function reads a table that is away until it was tried so many times."""

    def __init__(self, tries: int, empty: bool, text: str = "the table is away") -> None:
        super().__init__()
        self.tries, self.empty, self.text = tries, empty, text

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """Fail at any records, or `empty` at none too."""
        if not part and not self.empty:
            return None
        self.tries -= 1
        return self.text.format(self.tries) if self.tries >= 0 else None


@pytest.mark.parametrize("text", ["the table is away", "function 'f.py:f': OSError: part {} of the table is away"])
@pytest.mark.parametrize("policy", ["stop", "reject"])
def test_no_record_is_blamed_for_what_fails_without_records_too(policy: str, text: str) -> None:
    """They are good, and would be rejected, or named as the reason; the second text differs each time."""
    one = tolerant(TableAway(1000, empty=True, text=text), on_error=policy)
    small = Plan("p", BatchId(7), "out", {}, ((Range("in", 0, 0, 5),),), 1, {("in", 0): 5})
    with pytest.raises(errors.FunctionFailed, match="ValueError: no") as caught:
        one.deliver(small, {})
    assert "offset" not in str(caught.value)
    assert one.rejected == []


@pytest.mark.parametrize("tries", range(1, 25))
def test_no_record_is_blamed_for_a_table_that_comes_back_during_the_search(tries: int) -> None:
    """Whenever that is, good records are delivered, or the pipeline stops."""
    engine = TableAway(tries, empty=True)
    one = tolerant(engine, on_error="reject")
    small = Plan("p", BatchId(7), "out", {}, ((Range("in", 0, 0, 5),),), 1, {("in", 0): 5})
    with contextlib.suppress(errors.FunctionFailed):
        one.deliver(small, {})
    assert one.rejected == []


def test_record_that_is_left_out_is_not_blamed_again() -> None:
    """The batch fails without it, so it was not the reason; each try would add it once more."""
    one = tolerant(TableAway(1000, empty=False), on_error="reject")
    small = Plan("p", BatchId(7), "out", {}, ((Range("in", 0, 0, 5),),), 1, {("in", 0): 5})
    with pytest.raises(errors.FunctionFailed):
        one.deliver(small, {})
    assert len(one.rejected) <= 5


def test_search_is_announced_once() -> None:
    """It may take minutes, in which no batch is delivered."""
    one = tolerant(Raising(345), on_error="reject")
    one.deliver(PLAN, {})
    [news] = one.news()
    assert news == "batch 7: function 'f.py:f': ValueError: no; looking for the records, for up to 300 s"
    assert not list(one.news())
    assert announced(news, 5.0) == FaultSearch(7, "function 'f.py:f': ValueError: no", 5.0, 300.0)  # for the page
    assert announced(told(7, one.rejected), 5.0) is None


def test_too_many_faulty_records_stop_the_pipeline() -> None:
    """Then it is the function that is at fault; nothing was rejected."""
    with pytest.raises(errors.FunctionFailed, match="raised at more than 2 records of batch 7; one is in-0") as caught:
        tolerant(Raising(1, 2, 3), on_error="reject", max_errors=2).deliver(PLAN, {})
    assert "process.max_errors" in caught.value.then


def test_error_that_no_record_causes_is_reported_as_it_was() -> None:
    """The function raised once, and not when it was tried again."""

    class Once(Raising):
        def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
            return None

        def deliver(self, *_: Any, **__: Any) -> list[Written]:
            raise errors.QueryFailed("an executor was lost")

    with pytest.raises(errors.QueryFailed, match="an executor was lost"):
        tolerant(Once(), on_error="reject").deliver(PLAN, {})


class Vanishing(Raising):
    """An engine whose records are deleted from the topic while faulty ones are looked for."""

    def deliver(self, *_: Any, **__: Any) -> list[Written]:
        """Raise as the function does."""
        raise errors.FunctionFailed("function 'f.py:f': ValueError: no")

    def probe(self, plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        """Raise as the reader does."""
        raise errors.OffsetsOutOfRange("in-0: the plan reads 0 to 1000, and the topic holds 900 to 1000")


class Deleted(Raising):
    """An engine whose faulty record is deleted from the topic before it is looked for."""

    def deliver(self, *given: Any, **more: Any) -> list[Written]:
        """Raise the first time, as the function does at a record that was read before it was deleted."""
        if not self.deliveries:
            self.deliveries += 1
            raise errors.FunctionFailed("function 'f.py:f': ValueError: no")
        return super().deliver(*given, **more)

    def judge(self, *given: Any, **more: Any) -> Judged:
        """Raise the first time, too."""
        if not self.deliveries:
            self.deliveries += 1
            raise errors.FunctionFailed("function 'f.py:f': ValueError: no")
        return super().judge(*given, **more)


def test_pipeline_that_rejects_goes_on_without_a_faulty_record_that_is_gone() -> None:
    """The batch is delivered once more, and its other faulty records are found."""
    engine = Deleted(345)
    one = tolerant(engine, on_error="reject")
    one.deliver(PLAN, {})
    assert [each.offset for each in one.rejected] == [345]
    engine.bad, engine.deliveries = set(), 0
    one.deliver(PLAN, {})
    assert not one.rejected
    engine.deliveries = 0
    assert one.judge(PLAN) == (1000, 0)


def test_pipeline_that_stops_does_so_for_a_faulty_record_that_is_gone() -> None:
    """Somebody is to look at the function."""
    with pytest.raises(errors.FunctionFailed, match="ValueError: no"):
        tolerant(Deleted()).deliver(PLAN, {})


def test_pipeline_that_rejects_tells_what_ended_the_search() -> None:
    """The function is not to be fixed: what it raises at would have been rejected."""
    with pytest.raises(errors.OffsetsOutOfRange, match="holds 900 to 1000"):
        tolerant(Vanishing(), on_error="reject").deliver(PLAN, {})


def test_pipeline_that_stops_tells_what_the_function_raised() -> None:
    """It stops for that even if the record cannot be named."""
    with pytest.raises(errors.FunctionFailed, match="ValueError: no"):
        tolerant(Vanishing()).deliver(PLAN, {})


def test_search_is_given_up_with_the_batch() -> None:
    """A stop that cannot wait ends it."""
    engine = Raising(345)
    one = tolerant(engine, on_error="reject")
    tried = []

    def probe(plan: Plan, part: tuple[Range, ...], faults: Faults, lane: int) -> str | None:
        tried.append(part)
        one.cancel()
        return "no"

    engine.probe = probe  # type: ignore[method-assign]
    engine.deliver = lambda *_, **__: (_ for _ in ()).throw(errors.FunctionFailed("no"))  # type: ignore[method-assign]
    with pytest.raises(errors.FunctionFailed):
        one.deliver(PLAN, {})
    assert len(tried) == 1


def test_pipeline_without_code_of_its_own_blames_no_record() -> None:
    """Whatever failed, it was not the function."""
    engine = Raising(345)
    given_ = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out"}}
    with pytest.raises(errors.FunctionFailed, match=r"ValueError: no\n"):
        Tolerant(engine, Pipeline.model_validate(given_), lambda: True).deliver(PLAN, {})


def test_record_that_fails_only_once_is_not_blamed() -> None:
    """Its part was tried while an executor was lost; it would have been rejected for nothing."""
    engine = Raising(345)
    deliver, probe, tried = engine.deliver, engine.probe, list[int]()

    def flaky(plan: Plan, part: Part, faults: Faults, lane: int) -> str | None:
        start, end = (part[0].start, part[0].end) if part else (0, 0)
        if (start, end) == (700, 701) and tried.count(700) == 0:
            tried.append(700)
            return "an executor was lost"
        return probe(plan, part, faults, lane) or ("lost" if not tried and start <= 700 < end else None)

    engine.probe = flaky  # type: ignore[method-assign]
    engine.deliver = deliver  # type: ignore[method-assign]
    one = tolerant(engine, on_error="reject")
    one.deliver(PLAN, {})
    assert [each.offset for each in one.rejected] == [345]
    assert tried == [700]


def test_search_ends_in_time() -> None:
    """Each try may take as long as a batch; then the first error is what is known."""
    moments = iter([0.0, 301.0])
    one = tolerant(Raising(345))
    one.clock = lambda: next(moments, 301.0)
    with pytest.raises(errors.FunctionFailed, match=r"ValueError: no\n"):
        one.deliver(PLAN, {})


def test_search_that_takes_too_long_rejects_what_it_has_found() -> None:
    """The next search goes on from there; otherwise a batch with many faulty records could never be delivered."""
    engine, clock = Raising(*range(0, 1000, 11)), [0.0]
    probe = engine.probe

    def slow(plan: Plan, part: Part, faults: Faults, lane: int) -> str | None:
        clock[0] += 0.5
        return probe(plan, part, faults, lane)

    engine.probe = slow  # type: ignore[method-assign]
    one = tolerant(engine, on_error="reject")
    one.clock = lambda: clock[0]
    one.deliver(PLAN, {})
    assert sorted(each.offset for each in one.rejected) == list(range(0, 1000, 11))
    assert engine.deliveries > 2


def test_faulty_records_are_told_in_one_line() -> None:
    """However many there are, and however much the exception says."""
    one = Fault(("in", 0), 5, "ValueError: " + "x" * 200)
    assert told(3, [one]).startswith(
        "batch 3: the function raised at 1 record, now rejected; the first is in-0, offset 5"
    )
    assert len(told(3, [one] * 50)) < 250


def test_faults_are_grouped_by_partition() -> None:
    """A task looks up its own."""
    faults = [Fault(("in", 0), 1, "a"), Fault(("in", 1), 1, "b"), Fault(("in", 0), 2, "c")]
    assert by_place(faults) == {("in", 0): {1: "a", 2: "c"}, ("in", 1): {1: "b"}}


def test_record_at_which_a_condition_raises_is_blamed_while_rules_are_counted() -> None:
    """It is named as it is when the batch is delivered; with `reject` it is left out, and the others are counted."""
    with pytest.raises(errors.FunctionFailed, match="at in-0, offset 13, in batch 7"):
        tolerant(Raising(13)).judge(PLAN)
    assert tolerant(Raising(13), on_error="reject").judge(PLAN) == (999, 0)


class Contested(Raising):
    """An engine whose transactional ids an older driver's attempt takes so many times."""

    def __init__(self, times: int, *bad: int) -> None:
        super().__init__(*bad)
        self.left = times

    def deliver(self, *given: Any, **named: Any) -> list[Written]:
        """Deliver, unless there is a new faulty record, or the ids are taken once more."""
        done = super().deliver(*given, **named)
        self.left -= 1
        if self.left >= 0:
            raise errors.Contested("sink partition 0: another attempt has taken the transactional id")
        return done


def contested(engine: Contested, leads: bool, **process: Any) -> tuple[Tolerant, list[float]]:
    """Return the engine with a pipeline whose driver leads or does not, and how long it waits."""
    one, slept = tolerant(engine, **process), list[float]()
    one.leads, one.sleep = lambda: leads, slept.append
    return one, slept


def test_batch_that_an_older_drivers_attempt_contests_is_delivered_again() -> None:
    """The older driver learns only afterwards that it was fenced, and the one that leads must not end for it."""
    one, slept = contested(Contested(3), leads=True)
    assert one.deliver(PLAN, {}) == [Written(SinkPartition(0), skipped=False)]
    assert slept == [1.0, 2.0, 4.0]
    assert "batch 7: delivering it again in 1 s, because of sink partition 0: another attempt" in next(one.news())


def test_rejecting_faulty_records_leaves_the_pauses_of_a_contested_batch() -> None:
    """The batch may be contested as often as one without faulty records."""
    one, slept = contested(Contested(3, 345), leads=True, on_error="reject")
    assert one.deliver(PLAN, {}) == [Written(SinkPartition(0), skipped=False)]
    assert (len(one.rejected), slept) == (1, [1.0, 2.0, 4.0])


def test_doubt_of_another_cause_is_not_contested() -> None:
    """Brokers that do not answer are waited for elsewhere."""

    class Doubtful(Raising):
        def deliver(self, *_: Any, **__: Any) -> list[Written]:
            self.deliveries += 1
            raise errors.CommitInDoubt("sink partition 0: committing: another attempt may help")

    engine = Doubtful()
    with pytest.raises(errors.CommitInDoubt):
        tolerant(engine).deliver(PLAN, {})
    assert engine.deliveries == 1


def test_driver_that_does_not_lead_contests_nothing() -> None:
    """It would only disturb the one that does."""
    engine = Contested(1)
    one, slept = contested(engine, leads=False)
    with pytest.raises(errors.Contested):
        one.deliver(PLAN, {})
    assert (engine.deliveries, slept) == (1, [])


def test_batch_that_stays_contested_ends_the_driver() -> None:
    """Something else uses its transactional ids then, and a person must look."""
    engine = Contested(9)
    one, _ = contested(engine, leads=True)
    with pytest.raises(errors.Contested):
        one.deliver(PLAN, {})
    assert engine.deliveries == 4
