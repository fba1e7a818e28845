"""The cache of producers: none is closed while in use, and none is kept forever."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from tailrace.gateway.cache import Cache


@dataclass
class Producer:
    """A cached object, without a Kafka."""

    name: str = "p"
    closed: int = 0
    heard: int = 0
    doubt: str = ""
    queued: int = 0

    def close(self) -> None:
        """Count the call."""
        self.closed += 1

    def listen(self) -> None:
        """Count the call."""
        self.heard += 1


@dataclass
class Clock:
    """A clock that the test moves."""

    now: float = 0.0
    made: list[Producer] = field(default_factory=list)

    def __call__(self) -> float:
        """Return the current time."""
        return self.now

    def make(self) -> Producer:
        """Return a producer that the test remembers."""
        self.made.append(Producer(f"p{len(self.made)}"))
        return self.made[-1]


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache[Producer]:
    """Return a cache with that clock."""
    return Cache(clock)


def test_a_producer_is_reused(cache: Cache[Producer], clock: Clock) -> None:
    """The second user gets the first one's, and learns that it is not new."""
    with cache.borrow("a", clock.make) as (first, fresh):
        assert fresh
    with cache.borrow("a", clock.make) as (second, fresh):
        assert not fresh
    assert second is first
    assert cache.counts.created == 1


def test_a_task_of_an_hour_keeps_its_producer_whatever_the_idle_limit(cache: Cache[Producer], clock: Clock) -> None:
    """The cache of Spark 2 closed it in mid-task, after its limit."""
    with cache.borrow("a", clock.make, idle=10) as (producer, _):
        for _ in range(360):
            clock.now += 10
            cache.tend()
            assert producer.closed == 0
    cache.tend()
    assert producer.closed == 0
    clock.now += 10
    cache.tend()
    assert producer.closed == 1
    assert cache.counts.retired == {"idle": 1}


def test_an_idle_producer_is_closed_once(cache: Cache[Producer], clock: Clock) -> None:
    """The next user gets a new one."""
    with cache.borrow("a", clock.make, idle=10):
        pass
    clock.now = 9.9
    cache.tend()
    assert clock.made[0].closed == 0
    clock.now = 10.0
    cache.tend()
    cache.tend()
    assert clock.made[0].closed == 1
    with cache.borrow("a", clock.make) as (_, fresh):
        assert fresh


def test_failure_of_one_producer_keeps_no_other_from_being_tended(
    cache: Cache[Producer], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails to process its events is retired, and one that fails to close is gone."""
    for key, idle in (("deaf", 100), ("stuck", 10), ("idle", 10), ("good", 100)):
        with cache.borrow(key, clock.make, idle=idle):
            pass
    deaf, stuck, idle_one, good = clock.made

    def fail() -> None:
        raise OSError("the fault")

    monkeypatch.setattr(deaf, "listen", fail)
    monkeypatch.setattr(stuck, "close", fail)
    clock.now = 20.0
    cache.tend()
    assert (deaf.closed, idle_one.closed, good.heard) == (1, 1, 1)
    assert cache.counts.retired == {"failed": 1, "idle": 2}
    assert cache.counts.held == 1


def test_a_producer_is_not_reused_after_an_exception(cache: Cache[Producer], clock: Clock) -> None:
    """Its user closes a producer that failed."""
    with pytest.raises(ValueError, match="the fault"), cache.borrow("a", clock.make):
        raise ValueError("the fault")
    assert clock.made[0].closed == 1
    assert cache.counts.retired == {"failed": 1}
    with cache.borrow("a", clock.make) as (_, fresh):
        assert fresh


def test_a_producer_is_checked_for_doubts_before_reuse(cache: Cache[Producer], clock: Clock) -> None:
    """One with a doubt is replaced, and the doubt is counted with its reason."""
    with cache.borrow("a", clock.make) as (first, _):
        pass
    first.doubt = "a slow commit"
    with cache.borrow("a", clock.make, lambda producer: producer.doubt) as (second, fresh):
        assert fresh
    assert (first.closed, second.closed) == (1, 0)
    assert cache.counts.retired == {"a slow commit": 1}


def test_another_attempt_gets_its_own_and_does_not_close_the_one_in_use(cache: Cache[Producer], clock: Clock) -> None:
    """The older attempt continues until Kafka fences it, and closes its own producer."""
    with cache.borrow("a", clock.make) as (older, _), cache.borrow("a", clock.make) as (newer, fresh):
        assert fresh
        assert newer is not older
        cache.tend()
        assert older.closed == 0
    assert (older.closed, newer.closed) == (1, 0)
    assert cache.counts.held == 1


def test_users_share_a_producer_and_the_last_one_closes_it(cache: Cache[Producer], clock: Clock) -> None:
    """One user's failure retires it, and the other user can finish with it."""
    with cache.borrow("a", clock.make, alone=False) as (mine, _):
        with cache.borrow("a", clock.make, alone=False) as (theirs, _):
            assert theirs is mine
        with pytest.raises(ValueError, match="the fault"), cache.borrow("a", clock.make, alone=False):
            raise ValueError("the fault")
        assert mine.closed == 0
    assert mine.closed == 1


def test_simultaneous_users_share_one_producer(cache: Cache[Producer], clock: Clock) -> None:
    """The users that lose the race close the ones they made."""
    gate = threading.Barrier(8)
    got: list[Producer] = []

    def use() -> None:
        gate.wait(10)
        with cache.borrow("a", clock.make, alone=False) as (producer, _):
            got.append(producer)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(10)
    assert len({id(each) for each in got}) == 1
    assert sum(each.closed for each in clock.made) == len(clock.made) - 1
    assert cache.counts.held == 1


def test_an_unused_producer_is_polled(cache: Cache[Producer], clock: Clock) -> None:
    """A lost connection is thus noticed before the next batch."""
    with cache.borrow("a", clock.make) as (producer, _):
        cache.tend()
        assert producer.heard == 0
    cache.tend()
    assert producer.heard == 1


def test_every_producer_is_closed_once_at_the_end(cache: Cache[Producer], clock: Clock) -> None:
    """One that is in use is closed by its user."""
    with cache.borrow("a", clock.make):
        pass
    with cache.borrow("b", clock.make) as (used, _):
        cache.close()
        assert used.closed == 0
    assert [each.closed for each in clock.made] == [1, 1]
    counts = cache.counts
    assert (counts.created, counts.closed, counts.held, counts.used) == (2, 2, 0, 0)
