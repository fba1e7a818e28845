"""A backfill next to a world's pipeline: a range of its input into another topic, under the same strikes.

The same command is repeated until it has finished, as a person would; each crash and each broker that is away ends it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psutil

from faults.worlds.excuses import Stuck, excuses
from faults.worlds.launching import MOST_STARTS, copied, launched
from faults.worlds.world import Crash, Place
from tailrace import crash_points
from tailrace.admin.backfill import Request
from tailrace.config import Kafka
from tailrace.demo.driver import Driver
from tailrace.kafka.cluster import Cluster
from tailrace.testing import wait_until

if TYPE_CHECKING:
    from faults.worlds.pipeline import Driven

_APART = 0.02  # seconds between a record and a time before or after it
_LIMIT = 120.0


@dataclass(frozen=True)
class Span:
    """The times of a backfill, and the numbers of the records between them in each source partition."""

    since: datetime
    until: datetime
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def records(self) -> int:
        """The number of records in it."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


def feed_span(one: Driven, share: float) -> Span | None:
    """Write input until this share of the world's is there; return its second half if there is a backfill."""
    if one.world.backfill is None:
        one.feed(share)
        return None
    one.feed(share / 2)
    since, starts = _moment(one), dict(one.counts)
    one.feed(share)
    return Span(since, _moment(one), starts, dict(one.counts))


def _moment(one: Driven) -> datetime:
    """Return a time between two records, once no transaction of the input is open."""
    cluster, places = (
        Cluster(Kafka(bootstrap_servers=one.context.bootstrap)),
        [(one.source, each) for each in one.counts],
    )
    wait_until(
        lambda: cluster.latest(places, committed=True) == cluster.latest(places),
        "the input's transactions to end",
        _LIMIT,
    )
    time.sleep(_APART)
    found = datetime.now(UTC)
    time.sleep(_APART)
    return found


class Backfill:
    """One backfill and its drivers."""

    def __init__(self, one: Driven, span: Span, crashes: tuple[Crash, ...], path: str) -> None:
        self.span, self._world, self._path = span, one.world, path
        self.sink, self.rejected = one.context.topic("again", one.world.outputs), one.context.topic("again-rejected", 1)
        self._request = Request(span.since, span.until, self.sink, self.rejected)
        self.name = f"{one.name}-backfill-{self._request.digest(one.name)}"
        self.over = False
        self._starts, self._batches = 0, 0
        self._folder = copied(one.folder, "backfill")
        self._marks = self._folder / "crashes"
        self._crashes = [
            crash_points.Crash(crash_points.Point(each.at), each.batch, times=each.times) for each in crashes
        ]
        self._driver = self._started()

    def _started(self) -> Driver:
        span, file = self.span, str(self._folder / "pipeline.yaml")
        times = span.since.isoformat(), span.until.isoformat()
        if self._world.place is Place.THREADS:
            command = ["faults.worlds.thread_driver", file, *times, self.sink, self.rejected]
        else:
            command = ["tailrace.cli.main", "backfill", file, "--from", times[0], "--to", times[1]]
            command += ["--into", self.sink, "--rejected", self.rejected, "--output", "json"]
        environment = crash_points.crashes(self._marks, *self._crashes) if self._crashes else {}
        environment |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": self._path}
        self._starts += 1
        self._struck = self._happened
        return launched(command, environment, self._folder, self._world.place)

    @property
    def _happened(self) -> int:
        return len(list(self._marks.glob("*.crash")))

    def __str__(self) -> str:
        return "the backfill"

    @property
    def progress(self) -> int:
        """What grows while it does something."""
        return self._starts + self._batches

    def step(self) -> None:
        """Take the events that came; repeat the command if a strike ended it."""
        code = self._driver.code
        while (heard := self._driver.next(0.0)) is not None:
            self._batches += heard.event.get("event") == "written"
        if self.over or code is None:
            return
        if code == 0:
            self.over = True
            return
        if self._happened == self._struck:
            error = self._driver.failure()
            if self._starts >= MOST_STARTS or not isinstance(error, excuses(self._world)):
                raise Stuck(f"the backfill ended with {code}: {error}".replace("\n", " "))
        self._driver.end(0.0)
        self._driver = self._started()

    def close(self) -> None:
        """Leave no process behind."""
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            self._driver.end(0.0)
