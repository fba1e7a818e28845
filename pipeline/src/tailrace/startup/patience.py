"""Patience with brokers that are away: the driver waits for them, and then starts over in the same process.

What a batch had delivered is in the markers, so starting over is exact, as it is when a supervisor restarts the driver;
it only keeps the JVM and the executors. A driver that was replaced meanwhile ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.driver.shutdown import Stop
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.status.events import BatchWritten, BrokersAway, BrokersBack, Emit, Event, Idle, Started

_FIRST, _LONGEST = 0.5, 10.0  # seconds between two questions


class Patience:
    """Decides whether a failed run may go on, once the brokers answer."""

    def __init__(
        self,
        pipeline: Pipeline,
        cluster: Cluster,
        run: str,
        stop: Stop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = pipeline.kafka.patience
        self._cluster = cluster
        self._name, self._run = pipeline.pipeline, run
        self._stop = stop
        self._clock = clock
        self._since: float | None = None  # the first failure since the pipeline got on
        self._pause = _FIRST
        self._next: int | None = None  # the number of this driver's first batch, once it has led
        self._away = False  # whether it was said that brokers are away, and not that they are back

    def heard(self, event: Event) -> None:
        """Reset with each batch that is delivered or settled, and keep what was said of the brokers."""
        if isinstance(event, Started):  # the ledger is taken: until now the plans were those of the driver before
            self._next = event.batch
        # A run that starts over with nothing left to deliver settles the last batch, and is idle.
        if isinstance(event, BatchWritten | Idle):
            self._since, self._pause = None, _FIRST
        elif isinstance(event, BrokersAway | BrokersBack):
            self._away = isinstance(event, BrokersAway)

    def outlasts(self, error: errors.TailraceError, emit: Emit) -> bool:
        """Wait until the brokers answer; return False if the error has another reason, or it takes too long."""
        if not isinstance(error, errors.BrokerUnreachable | errors.CommitInDoubt | errors.KafkaFailed):
            return False
        self._since = self._clock() if self._since is None else self._since
        told = False
        while self._clock() - self._since < self._limit and not self._stop.event.is_set():
            if self._answered():
                if told or self._away:
                    emit(BrokersBack())
                if not told and isinstance(error, errors.KafkaFailed):
                    return False
                return not self._stop.event.wait(self._paused())
            if not told:
                emit(BrokersAway(error.what))
            told = True
            self._stop.event.wait(self._paused())
        return False

    def _answered(self) -> bool:
        try:
            self._cluster.topics()
        except errors.KafkaError:
            return False
        return True

    def _paused(self) -> float:
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST)
        return pause

    def refuse_successor(self, ledger: Ledger) -> None:
        """End this driver if another one took over while the brokers were away: it must not be fenced in turn.

        A plan of another run counts by its number: its time may be that of a clock which was set back since.
        """
        last = ledger.latest()
        newer = last is not None and last.run != self._run and self._next is not None and last.batch >= self._next
        if newer or ledger.overtaken():
            raise errors.DriverFenced(
                f"a newer driver of pipeline {self._name!r} has taken over while no broker answered this one",
                kept="what this driver committed stays; the newer driver delivers everything else",
                then="if you did not mean to run a second driver, find the one with the same pipeline name",
            )
