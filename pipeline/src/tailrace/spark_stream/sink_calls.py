"""Which `exactly_once` of this process writes under which name, and which batch it wrote last.

A plan names the query and the batch, not the call. So a second call for the same batch under the same name would be
taken for a replay of the first, and its rows would be skipped. It is refused before it reads the ledger.

Spark keeps the function of a query that has ended, and its error, until the JVM frees them, which may take half an
hour. A program that starts its query again and again with a new `exactly_once` would run out of threads and files, so
the newer one drops the clients of the older, and an error keeps none.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tailrace.errors import OptionRefused

Key = tuple[str, str]  # the brokers and the name under which plans and markers are written


@dataclass(frozen=True)
class Call:
    """A call of an `exactly_once(...)` for one batch of one run of a query."""

    sink: str  # the object that was called
    query: str
    run: str  # Spark's id of this run of the query
    batch: int
    failed: bool = False  # it has ended with an error, and may be repeated


def key_of(servers: str, name: str) -> Key:
    """Return the key of a name; the order of the servers is no matter."""
    return ",".join(sorted(servers.replace(" ", "").split(","))), name


@contextmanager
def bare_errors() -> Iterator[None]:
    """Take the variables, and so the clients, out of the traceback of an error that leaves."""
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = []
        each: BaseException | None = error
        while each is not None and each not in chain:
            traceback.clear_frames(each.__traceback__)
            chain.append(each)
            each = each.__cause__ or each.__context__
        raise


def check(name: str, last: Call | None, now: Call, *, active: bool) -> None:
    """Refuse a call that the ledger would mix up with the `last` one under its name.

    `active` is whether the query run of the last call still runs. The same sink may repeat a call that failed.
    """
    if last is None:
        return
    if last.run != now.run:
        if not active:
            return
        raise OptionRefused(
            f"an active query ({last.query}) writes as {name!r}, and the query {now.query} would write under the same "
            "name: the batches of one would be taken for those of the other",
            kept="nothing of this batch was written; the other query continues",
            then="make another exactly_once(...) for this query, with an id of its own, or none; leave the other "
            "query's as it is",
        )
    if last.batch == now.batch and not (last.failed and last.sink == now.sink):
        raise OptionRefused(
            f"exactly_once was called twice for batch {now.batch} as {name!r}: the second call would be taken for a "
            "repetition of the first, and its rows skipped",
            kept="the second call wrote nothing; what the first has written is not written again",
            then="leave the first call as it is, and make another exactly_once(...) for the second, with an id of its "
            "own; a new query can instead call it once, with the union of the frames and a column `topic`",
        )


class Calls:
    """The last call under each name; safe for the threads of several queries."""

    def __init__(self) -> None:
        self._last: dict[Key, Call] = {}
        self._holders: dict[Key, weakref.WeakMethod[Callable[[], None]]] = {}
        self._lock = threading.Lock()

    def begin(self, key: Key, now: Call, active: Callable[[Call], bool]) -> None:
        """Note a call; refuse it if it would be mixed up with the last one. `active`: whether a call's query runs."""
        with self._lock:
            last = self._last.get(key)
            check(key[1], last, now, active=last is not None and last.run != now.run and active(last))
            self._last[key] = now

    def fail(self, key: Key, now: Call) -> None:
        """Note that a call has failed, unless another one has begun meanwhile."""
        with self._lock:
            if self._last.get(key) == now:
                self._last[key] = replace(now, failed=True)

    def hold(self, key: Key, let_go: Callable[[], None]) -> None:
        """Note the method by which the sink that has taken a name lets go of its clients; the one before it does so."""
        with self._lock:
            held = self._holders.get(key)
            self._holders[key] = weakref.WeakMethod(let_go)
        former = held() if held is not None else None
        if former is not None and former != let_go:
            former()
