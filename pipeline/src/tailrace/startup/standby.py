"""Waiting beside a running driver, ready to go on the moment that it has gone.

What takes a start its seconds is done beforehand: the session, what `warming` does, and every check that can refuse a
pipeline. None of it writes anything.
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
_WARM_EVERY = 25.0  # Spark ends a Python worker that was idle for a minute


@dataclass(frozen=True)
class Standby:
    """A driver that has not got the pipeline yet."""

    spark: SparkSession
    pipeline: Pipeline
    warm: Callable[[], None]  # run the pipeline's stages on no record
    cluster: Cluster
    ledger: Ledger
    lease: Lease
    run: str
    emit: Emit
    stop: Stop

    def wait(self) -> bool:
        """Make ready, say so, and wait; True when it is this driver's turn, False when it was told to stop."""
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
        told, warmed = False, time.monotonic()
        while not self.stop.event.wait(ASK_EVERY if told else 0.02):
            if self.lease.problem is not None:  # never a member, so never its turn
                raise self.lease.problem
            try:
                holders = running(self.cluster, self.pipeline.pipeline)
            except NotAuthorized:
                raise
            except KafkaError:
                continue  # brokers that are away say nothing about the other driver, and neither could take over
            if not told and any(each.run == self.run for each in holders):
                told = True
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
