"""How the limit of a batch is learned, on systems whose cost is known exactly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.driver.rate import BLIND, CAREFUL, FIRST, FLOOR, GROWTH, Bounds, Observed, Rate

WIDE = Bounds(target=1.0, max_records=10_000_000, max_bytes=10**12)


@dataclass(frozen=True)
class Machine:
    """The cost of a batch: a fixed time and a time per record, with noise, and cold at first."""

    fixed: float
    each: float
    noise: float = 0.0
    outliers: float = 0.0
    start: float = 3.0

    def seconds(self, records: int, number: int, chance: random.Random) -> float:
        """Return the time of a batch."""
        exact = self.fixed + self.each * records
        warming = self.start if number == 0 else 0.3 * exact if number < 3 else 0.0
        slow = 10.0 if chance.random() < self.outliers else 1.0
        return max(0.001, (exact + warming) * slow * (1 + chance.gauss(0, self.noise)))


def drained(
    rate: Rate, machine: Callable[[int], Machine], batches: int, size: int = 100, seed: int = 1, since: int = 0
) -> tuple[Rate, list[tuple[int, float]]]:
    """Run full batches one after the other; return the limit and the exact time of each."""
    chance, history = random.Random(seed), []
    for number in range(since, since + batches):
        records, now = rate.limit, machine(number)
        history.append((records, now.fixed + now.each * records))
        rate = rate.after(Observed(records, now.seconds(records, number, chance), records * size))
    return rate, history


SYSTEMS = [
    Machine(0.05, 2e-6),
    Machine(0.15, 4e-6),
    Machine(0.3, 1e-3),
    Machine(0.02, 0.02),
    Machine(0.15, 4e-6, noise=0.1, outliers=0.05),
    Machine(0.3, 1e-3, noise=0.2, outliers=0.05),
]


@pytest.mark.parametrize("machine", SYSTEMS, ids=str)
@pytest.mark.parametrize("target", [1.0, 5.0])
@pytest.mark.parametrize("seed", range(5))
def test_batches_converge_to_the_target_time(machine: Machine, target: float, seed: int) -> None:
    """They do so by the twentieth batch, whatever a record costs, with noise and outliers."""
    bounds = Bounds(target, 10_000_000, 10**12)
    _, history = drained(Rate.starting(bounds, 100), lambda _: machine, 60, seed=seed)
    settled = [seconds for _, seconds in history[20:]]
    assert median(settled) == pytest.approx(target, rel=0.15 + machine.noise)


@pytest.mark.parametrize("factor", [2, 10])
def test_the_limit_follows_a_rising_cost(factor: int) -> None:
    """A broker or a function that slows down brings the limit down within a few batches."""
    before, after = Machine(0.15, 4e-6), Machine(0.15, 4e-6 * factor)
    _, history = drained(Rate.starting(WIDE, 100), lambda number: before if number < 30 else after, 60)
    assert [seconds for _, seconds in history[40:]] == pytest.approx([1.0] * 20, rel=0.2)


def test_the_limit_follows_a_falling_cost() -> None:
    """A broker or a function that is fast again brings the limit up."""
    slow, fast = Machine(0.15, 4e-5), Machine(0.15, 4e-6)
    _, history = drained(Rate.starting(WIDE, 100), lambda number: slow if number < 30 else fast, 60)
    assert [seconds for _, seconds in history[45:]] == pytest.approx([1.0] * 15, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fixed", [0.8, 2.0, 10.0])
def test_a_fixed_time_beyond_the_target_does_not_starve_the_records(fixed: float, seed: int) -> None:
    """If the fixed time alone is longer, the records get as much again: half of the best throughput."""
    machine = Machine(fixed, 1e-5, noise=0.02)
    _, history = drained(Rate.starting(WIDE, 100), lambda _: machine, 80, seed=seed)
    assert median(1e-5 * records for records, _ in history[30:]) == pytest.approx(fixed, rel=0.4)


def test_a_pipeline_on_an_overloaded_machine_is_not_starved() -> None:
    """Batches take three seconds, and every third one four times as long: smaller batches would take as long."""
    machine, totals = Machine(3.0, 3.5e-5, noise=0.3), []
    for seed in range(20):
        chance, rate, records = random.Random(seed), Rate.starting(WIDE, 100), 0
        for number in range(40):
            slow = 4.0 if chance.random() < 0.33 else 1.0
            records += rate.limit
            seconds = slow * machine.seconds(rate.limit, number, chance)
            rate = rate.after(Observed(rate.limit, seconds, rate.limit * 100))
        totals.append(records)
    assert median(totals) > 500_000


def test_a_rising_fixed_time_is_noticed() -> None:
    """A broker that takes three seconds for each commit does not bring the limit down to nothing."""
    before, after = Machine(0.15, 4e-6), Machine(3.0, 4e-6)
    _, history = drained(Rate.starting(WIDE, 100), lambda number: before if number < 30 else after, 150)
    assert median(records for records, _ in history[100:]) > 200_000


def test_a_cold_first_batch_teaches_nothing_about_time() -> None:
    """A minute of start-up leaves the limit as it was."""
    rate = Rate.starting(WIDE, 100).after(Observed(FIRST, 60.0, FIRST * 100))
    assert rate.limit == FIRST


def test_the_limit_recovers_quickly_from_one_slow_batch() -> None:
    """The limit falls by half at most, and recovers within three batches."""
    machine = Machine(0.15, 4e-6)
    rate, _ = drained(Rate.starting(WIDE, 100), lambda _: machine, 30)
    before = rate.limit
    rate = rate.after(Observed(before, 30.0, before * 100))
    assert rate.limit >= before * 0.49
    rate, _ = drained(rate, lambda _: machine, 3, since=30)
    assert rate.limit == pytest.approx(before, rel=0.15)


def test_batches_that_are_not_full_leave_the_limit_unchanged() -> None:
    """A quiet hour teaches nothing about the cost of a full batch."""
    rate, _ = drained(Rate.starting(WIDE, 100), lambda _: Machine(0.15, 4e-6), 30)
    before = rate.limit
    for number in range(1000):
        rate = rate.after(Observed(1 + number % 500, 0.16 + number % 7 / 100, 100 * (1 + number % 500)))
    assert rate.limit == before


def test_the_start_is_slow() -> None:
    """A restart with a backlog begins small, and is never more than a few times as large as the batch before."""
    _, history = drained(Rate.starting(WIDE, 100), lambda _: Machine(0.15, 4e-6), 12)
    limits = [records for records, _ in history]
    assert limits[0] == FIRST
    assert all(after <= GROWTH * before for before, after in pairwise(limits))
    assert limits[-1] > 100_000


def test_the_limit_grows_carefully_near_the_target() -> None:
    """A batch that took most of the target is followed by one of at most twice its records."""
    rate = Rate.starting(WIDE, 100).after(Observed(1000, 1.0, 100_000))
    for seconds in (0.6, 0.6, 0.6, 0.6):
        rate = rate.after(Observed(1000, seconds, 100_000))
        assert rate.limit <= CAREFUL * 1000


def test_large_records_are_limited_by_bytes() -> None:
    """Records of 5 MB make a batch of max_bytes from the first one on, however fast they are."""
    bounds = Bounds(1.0, 200_000, 256_000_000)
    rate, history = drained(Rate.starting(bounds, 5e6), lambda _: Machine(0.01, 1e-6), 20, size=5_000_000)
    assert {records for records, _ in history} == {51}
    assert rate.limit == 51


def test_a_topic_with_unknown_record_size_begins_with_few_records() -> None:
    """It continues with what the first batch has shown."""
    rate = Rate.starting(Bounds(1.0, 200_000, 256_000_000), None)
    assert rate.limit == BLIND
    assert rate.after(Observed(BLIND, 4.0, BLIND * 5_000_000)).limit == 51
    assert rate.after(Observed(BLIND, 4.0, BLIND * 100)).limit == FIRST


def test_small_records_do_not_let_too_many_large_ones_follow() -> None:
    """After one batch of small records the limit has only doubled."""
    rate = Rate.starting(Bounds(0, 200_000, 1_000_000), 10_000)
    assert rate.limit == 100
    assert rate.after(Observed(100, 0.1, 100)).limit <= 200
    assert rate.after(Observed(100, 0.1, 100 * 100_000)).limit == 10


def test_only_counts_and_bytes_limit_a_batch_without_a_target() -> None:
    """With target 0 the limit is max_records from the first batch on, whatever the time; bytes still count."""
    rate = Rate.starting(Bounds(0, 5_000, 10**9), 100)
    assert rate.limit == 5_000
    assert rate.after(Observed(5_000, 100.0, 500_000)).after(Observed(5_000, 100.0, 500_000)).limit == 5_000
    assert rate.after(Observed(5_000, 100.0, 5_000 * 10**6)).limit == 1_000


def test_an_empty_batch_teaches_nothing() -> None:
    """It does not even end the start phase."""
    rate = Rate.starting(WIDE, 100)
    assert rate.after(Observed(0, 5.0, 0)) == rate


@given(
    st.builds(
        Bounds,
        target=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
        max_records=st.integers(1, 10**7),
        max_bytes=st.integers(1, 10**10),
    ),
    st.none() | st.floats(0, 1e8),
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1000), st.none() | st.integers(0, 10**8)), min_size=1, max_size=40
    ),
)
def test_the_limit_stays_within_its_bounds(
    bounds: Bounds, weight: float | None, batches: list[tuple[float, float, int | None]]
) -> None:
    """Whatever is observed, it is at least one record, at most max_records and max_bytes, and never jumps upwards."""
    rate = Rate.starting(bounds, weight)
    for part, seconds, each in batches:
        before, records = rate, int(part * rate.limit)
        rate = rate.after(Observed(records, seconds, None if each is None else each * records))
        assert 1 <= rate.limit <= bounds.max_records
        if rate.weight is not None:
            assert rate.limit == 1 or rate.limit * rate.weight <= bounds.max_bytes
        if bounds.target:
            assert rate.paced <= max(before.paced, before.limit * GROWTH, FLOOR)
            assert rate.paced >= min(FLOOR, before.paced, bounds.max_records)
