"""Choosing a batch, as properties: nothing twice, nothing starved, no range split, limits kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.driver.choose import PART_SECONDS, Width, allot, choose, reached
from tailrace.progress.plan import Place, Range
from tailrace.progress.positions import bounded

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 20))
backlogs = st.dictionaries(places, st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=20)
widths = st.builds(
    Width,
    slots=st.integers(1, 8),
    most=st.none() | st.integers(1, 10),
    least=st.none() | st.integers(1, 30),
    cost=st.floats(1e-7, 1.0),
)


def offsets(parts: tuple[tuple[Range, ...], ...]) -> list[tuple[Place, int]]:
    """List every offset that is read."""
    return [(each.place, offset) for part in parts for each in part for offset in range(each.start, each.end)]


@given(backlogs, st.integers(1, 3000), st.integers(0, 100), widths)
def test_batch_reads_each_offset_once_and_keeps_its_limits(
    backlog: dict[Place, tuple[int, int]], limit: int, batch: int, width: Width
) -> None:
    """It starts at the positions, without gaps, within the limit, in no more sink partitions than allowed."""
    positions = {place: start for place, (start, _) in backlog.items()}
    ends = {place: start + count for place, (start, count) in backlog.items()}
    parts = choose(positions, ends, limit, batch, width)
    read = offsets(parts)
    assert len(read) == len(set(read)) == min(limit, sum(count for _, count in backlog.values()))
    for place in positions:
        mine = sorted(offset for where, offset in read if where == place)
        assert mine == list(range(positions[place], positions[place] + len(mine)))
    assert len(parts) <= max(width.slots, width.least or 0)
    assert width.most is None or len(parts) <= width.most
    assert all(part for part in parts)


@given(backlogs, st.integers(1, 3000), st.integers(0, 100), widths)
def test_range_of_a_source_partition_is_split_only_if_more_tasks_are_requested(
    backlog: dict[Place, tuple[int, int]], limit: int, batch: int, width: Width
) -> None:
    """Each source partition has one range; and no sink partition ever has two of one source partition."""
    positions = {place: start for place, (start, _) in backlog.items()}
    ends = {place: start + count for place, (start, count) in backlog.items()}
    parts = choose(positions, ends, limit, batch, width)
    for part in parts:
        assert len({each.place for each in part}) == len(part)
    ranges = [each.place for part in parts for each in part]
    if width.least is None:
        assert len(ranges) == len(set(ranges))


@given(st.dictionaries(places, st.integers(1, 500), min_size=1, max_size=20), st.integers(1, 40))
def test_no_partition_is_starved(waiting: dict[Place, int], limit: int) -> None:
    """Within as many batches as there are partitions, each gets at least one record, whatever the others hold."""
    served = {place for batch in range(len(waiting)) for place, count in allot(waiting, limit, batch).items() if count}
    assert served == set(waiting)


@given(st.dictionaries(places, st.integers(1, 500), min_size=1, max_size=20), st.integers(1, 4000))
def test_small_backlogs_are_read_completely_before_large_ones_get_more(waiting: dict[Place, int], limit: int) -> None:
    """Partitions that did not get everything have shares that differ by at most one record."""
    taken = allot(waiting, limit, 0)
    short = [taken[place] for place in waiting if taken[place] < waiting[place]]
    assert not short or max(short) - min(short) <= 1
    assert not short or all(count <= max(short) + 1 for count in taken.values())


@given(
    st.dictionaries(places, st.tuples(st.integers(0, 50), st.integers(0, 200), st.integers(0, 200)), max_size=10),
    st.dictionaries(places, st.integers(1, 500), max_size=5),
    st.integers(1, 300),
    widths,
)
def test_bounded_run_reads_up_to_its_bound_and_no_further(
    backlog: dict[Place, tuple[int, int, int]], added: dict[Place, int], limit: int, width: Width
) -> None:
    """Batch after batch, whatever the topics hold beyond the bound, and whatever partitions are added meanwhile."""
    positions = {place: start for place, (start, _, _) in backlog.items()}
    until = {place: start + inside for place, (start, inside, _) in backlog.items()}
    ends = added | {place: sum(each) for place, each in backlog.items()}
    begun = dict(positions)
    positions = dict.fromkeys(added, 0) | positions
    read: list[tuple[Place, int]] = []
    for batch in range(10_000):
        parts = choose(positions, bounded(ends, until), limit, batch, width)
        if not parts:
            break
        assert not reached(positions, until, {})
        read += offsets(parts)
        positions |= {each.place: each.end for part in parts for each in sorted(part)}
    assert reached(positions, until, {})
    assert sorted(read) == sorted((place, offset) for place in until for offset in range(begun[place], until[place]))


def test_bound_is_not_reached_while_a_place_is_behind_it_or_unknown() -> None:
    """A broker that shows fewer records for a moment does not end the run."""
    until = {("a", 0): 5, ("a", 1): 0}
    assert not reached({("a", 1): 0}, until, {})
    assert not reached({("a", 0): 4, ("a", 1): 0}, until, {})
    assert reached({("a", 0): 5}, until, {})
    assert reached({}, until, {"id-a": {("a", 0): 5}})


def test_small_batch_has_one_sink_partition_and_large_one_fills_the_slots() -> None:
    """The width follows the work, estimated from the cost of a record so far."""
    width = Width(slots=4, cost=PART_SECONDS / 1000)
    assert [width.of(records, 8) for records in (1, 1000, 2000, 3000, 100_000)] == [1, 1, 2, 3, 4]
    assert width.of(100_000, 2) == 2


def test_grouping_balances_the_sink_partitions() -> None:
    """The longest ranges are distributed first."""
    ends = {("a", number): size for number, size in enumerate([100, 60, 50, 40])}
    parts = choose(dict.fromkeys(ends, 0), ends, 1000, 0, Width(slots=2, cost=1.0))
    assert sorted(sum(each.end - each.start for each in part) for part in parts) == [110, 140]
