"""What the driver asks the brokers while a batch takes long: whether they are away, which it says once, and whether
another driver has taken over.

Neither may hold up a batch, or a stop, so the questions are asked by a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial

from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka.clients import in_thread
from tailrace.kafka.cluster import Cluster
from tailrace.status.events import BrokersAway, BrokersBack, Emit

_EVERY = 5.0  # seconds into a batch, and between two questions


def asking(kafka: Kafka) -> Callable[[], object]:
    """Return the question whether brokers answer, with a client of its own, which is made when it is first asked.

    If another thread's client asked, an answer might free a request for offsets that still looks up a leader.
    """
    made = cache(partial(Cluster, kafka))
    return lambda: made().topics()


@dataclass
class Brokers:
    """The brokers as one run sees them; used by a single thread."""

    emit: Emit
    ask: Callable[[], object]  # raises a KafkaError if no broker answers
    clock: Callable[[], float] = time.monotonic
    away: bool = False
    _asked: float = 0.0
    _lead: Callable[[], object] = lambda: None
    _answer: Future[object] | None = None

    def silent(self, why: str) -> None:
        """Take note that no broker answers."""
        if not self.away:
            self.emit(BrokersAway(why))
        self.away = True

    def answered(self) -> None:
        """Take note that they answer."""
        if self.away:
            self.emit(BrokersBack())
        self.away = False

    def batch(self, lead: Callable[[], object] = lambda: None) -> None:
        """Take note that a batch begins; `lead` raises DriverFenced if another driver has taken over meanwhile."""
        self._asked, self._lead, self._answer = self.clock(), lead, None

    def look(self) -> None:
        """Ask, if the batch takes long; do not wait for the answer, but take the last one.

        Raise DriverFenced if another driver has taken over.
        """
        if self._answer is None:
            if self.clock() - self._asked > _EVERY:
                ask, lead = self.ask, self._lead
                self._answer = in_thread("tailrace-brokers", lambda: (ask(), lead()))
            return
        if not self._answer.done():
            return
        error, self._answer, self._asked = self._answer.exception(), None, self.clock()
        if isinstance(error, errors.DriverFenced):
            raise error
        if isinstance(error, errors.BrokerUnreachable | errors.KafkaFailed):
            self.silent(error.what)
        elif error is None:
            self.answered()
