"""A standby: waits next to a running driver, ready to continue the moment that one has gone.

The slow parts of a start are done beforehand: the session, what `warming` does, and every check that can refuse a
pipeline. None of them writes anything.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.shutdown import Stop
from tailrace.errors import KafkaError, NotAuthorized
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Holder, Lease, Phase, next_in_line, running
from tailrace.progress.ledger import Ledger
from tailrace.startup import warming
from tailrace.status.events import Emit, StandingBy, Stopped

ASK_EVERY = 0.2
_WARM_EVERY = 25.0  # Spark ends a Python worker that has been idle for a minute


@dataclass(frozen=True)
class Standby:
    """A driver that does not lead its pipeline yet."""

    spark: SparkSession
    pipeline: Pipeline
    warm: Callable[[], None]  # run the pipeline's stages on no records
    cluster: Cluster
    ledger: Ledger
    lease: Lease
    run: str
    emit: Emit
    stop: Stop

    def wait(self) -> bool:
        """Prepare, report that, and wait; return True when it is this driver's turn, False after a stop request."""
        self.ledger.latest()
        self.ledger.prepare()
        cold = []
        for step in (self._warm_workers, self.warm):
            if self.stop.event.is_set():
                return self._stopped()
            try:
                step()
            except warming.LOST as problem:
                cold.append(f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        self.lease.hold(Phase.STANDBY)
        return self._turn(cold) or self._stopped()

    def _turn(self, cold: list[str]) -> bool:
        announced, warmed = False, time.monotonic()
        while not self.stop.event.wait(ASK_EVERY if announced else 0.02):
            if self.lease.problem is not None:  # never a member, so never its turn
                raise self.lease.problem
            try:
                holders = running(self.cluster, self.pipeline.pipeline)
            except NotAuthorized:
                raise
            except KafkaError:
                continue  # unreachable brokers say nothing about the other driver, and nobody could take over
            if not announced and any(each.run == self.run for each in holders):
                announced = True
                self._say(holders[0], cold)
            if next_in_line(holders, self.run):
                self.lease.hold(Phase.LEADING)
                return True
            if time.monotonic() - warmed > _WARM_EVERY:
                with contextlib.suppress(*warming.LOST):
                    self._warm_workers()
                warmed = time.monotonic()
        return False

    def _say(self, first: Holder, cold: list[str]) -> None:
        leader = {"run": first.run, "host": first.host} if first.phase is Phase.LEADING else None
        self.emit(StandingBy(self.pipeline.pipeline, self.run, leader, cold))

    def _stopped(self) -> bool:
        self.emit(Stopped(self.stop.reason, None))
        return False

    def _warm_workers(self) -> None:
        warming.workers(self.spark)
