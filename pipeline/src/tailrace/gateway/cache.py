"""A reference-counted cache of one executor's producers.

A producer in use is never closed, however long a task takes: the producer cache of the Spark in the write-ups closed
producers that had not been requested for a while, and hour-long tasks lost theirs. A retired producer is closed by its
last user.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that the cache can hold."""

    name: str

    @property
    def queued(self) -> int:
        """How much is queued in it."""

    def close(self) -> None:
        """Release everything."""

    def listen(self) -> None:
        """Process the events since the last call."""


P = TypeVar("P", bound=Closable)
_ANOTHER = "another attempt: it started while this one was in use"


@dataclass
class _Kept(Generic[P]):
    producer: P
    idle: float
    owner: str
    users: int = 0
    since: float = 0.0  # when it was last used
    retired: bool = False
    tended: bool = False
    closed: bool = False


@dataclass(frozen=True)
class Counts:
    """What the cache has done so far, and what it holds now."""

    created: int
    closed: int
    held: int
    used: int
    retired: dict[str, int] = field(default_factory=dict)  # by reason


class Cache(Generic[P]):
    """Producers by key; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, _Kept[P]] = {}
        self._retired: collections.Counter[tuple[str, str]] = collections.Counter()
        self._created: collections.Counter[str] = collections.Counter()
        self._closed: collections.Counter[str] = collections.Counter()

    @contextlib.contextmanager
    def borrow(
        self,
        key: Hashable,
        make: Callable[[], P],
        doubt: Callable[[P], str] = lambda producer: "",
        idle: float = 300.0,
        alone: bool = True,
        owner: str = "",
    ) -> Iterator[tuple[P, bool]]:
        """Lend the producer of this key, and say whether it is new; retire it after an exception.

        With `alone` it has one user at a time: a second user gets a new producer, and the first is retired. It is
        counted with the producers of `owner`. A doubt is one or two words, with any details after a colon.
        """
        kept, fresh = self._take(key, make, doubt, idle, alone, owner)
        try:
            yield kept.producer, fresh
        except BaseException as error:
            self._retire(key, kept, f"failed: {type(error).__name__}")
            raise
        finally:
            self._give_back(kept)

    def _take(
        self, key: Hashable, make: Callable[[], P], doubt: Callable[[P], str], idle: float, alone: bool, owner: str
    ) -> tuple[_Kept[P], bool]:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and alone and kept.users:
                self._forget(key, kept, _ANOTHER)
                kept = None
            if kept is not None:
                kept.users += 1
        if kept is not None:
            why = doubt(kept.producer)
            if not why:
                return kept, False
            self._retire(key, kept, why)
            self._give_back(kept)
        made = _Kept(make(), idle, owner, users=1)
        with self._lock:
            self._created[owner] += 1
            other = self._kept.get(key)
            if other is not None and not alone:  # two threads made one at the same time: keep the first
                other.users += 1
                made.users, made.retired = 0, True
            else:
                if other is not None:
                    self._forget(key, other, _ANOTHER)
                self._kept[key] = made
        if made.retired and other is not None:
            self._close_if_done(made)
            return other, False
        if other is not None:
            self._close_if_done(other)
        return made, True

    def _forget(self, key: Hashable, kept: _Kept[P], why: str) -> None:
        """Retire a producer, so that it is never lent again; the caller holds the lock."""
        if not kept.retired:
            kept.retired = True
            self._retired[kept.owner, why.partition(":")[0]] += 1
            log.info("retired the producer of %s: %s", kept.producer.name, why)
        if self._kept.get(key) is kept:
            del self._kept[key]

    def _retire(self, key: Hashable, kept: _Kept[P], why: str) -> None:
        with self._lock:
            self._forget(key, kept, why)

    def _give_back(self, kept: _Kept[P]) -> None:
        with self._lock:
            kept.users -= 1
            kept.since = self._clock()
        self._close_if_done(kept)

    def _close_if_done(self, kept: _Kept[P]) -> None:
        with self._lock:
            if not kept.retired or kept.users or kept.tended or kept.closed:
                return
            kept.closed = True
            self._closed[kept.owner] += 1
        log.info("closing the producer of %s", kept.producer.name)
        try:
            kept.producer.close()
        except Exception:  # neither its last user nor the other producers depend on it
            log.exception("closing the producer of %s failed", kept.producer.name)

    def tend(self) -> None:
        """Close producers that were idle for too long; let the other unused ones process their events."""
        now = self._clock()
        with self._lock:
            unused = [(key, kept) for key, kept in self._kept.items() if not kept.users]
            for key, kept in unused:
                if now - kept.since >= kept.idle:
                    self._forget(key, kept, "idle")
                else:
                    kept.tended = True  # it may be borrowed meanwhile, but not closed
        for key, kept in unused:
            if kept.tended:
                try:
                    kept.producer.listen()
                except Exception as error:  # the others are tended all the same
                    log.exception("the producer of %s failed while no task used it", kept.producer.name)
                    self._retire(key, kept, f"failed: {type(error).__name__}")
                with self._lock:
                    kept.tended = False
            self._close_if_done(kept)

    def close(self) -> None:
        """Retire everything; a producer in use is closed by its last user."""
        with self._lock:
            every = list(self._kept.items())
            for key, kept in every:
                self._forget(key, kept, "exit")
        for _, kept in every:
            self._close_if_done(kept)

    @property
    def counts(self) -> Counts:
        """What the cache has done so far."""
        with self._lock:
            return self._count(lambda owner: True)

    def owners(self) -> dict[str, Counts]:
        """Return the counts of each owner."""
        with self._lock:
            return {owner: self._count(owner.__eq__) for owner in self._created}

    def each(self) -> list[tuple[str, P]]:
        """Return the cached producers, with their owners."""
        with self._lock:
            return [(kept.owner, kept.producer) for kept in self._kept.values()]

    def _count(self, ours: Callable[[str], bool]) -> Counts:
        """Count the producers of these owners; the caller holds the lock."""
        kept = [each for each in self._kept.values() if ours(each.owner)]
        retired: collections.Counter[str] = collections.Counter()
        for (owner, why), number in self._retired.items():
            if ours(owner):
                retired[why] += number
        return Counts(
            sum(number for owner, number in self._created.items() if ours(owner)),
            sum(number for owner, number in self._closed.items() if ours(owner)),
            len(kept),
            sum(1 for each in kept if each.users),
            dict(retired),
        )
