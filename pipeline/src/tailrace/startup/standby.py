"""A standby: waits next to a running driver, ready to continue the moment that one has gone.

The slow parts of a start are done beforehand: the session, what `warming` does, and every check that can refuse a
pipeline. None of them writes anything. A standby says that it is ready only while another driver leads, and only once
nothing in the ledger would make it refuse to take over: a rolling upgrade then ends the other one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from pyspark.sql import SparkSession

from tailrace.driver import recovery
from tailrace.driver.context import Context
from tailrace.errors import KafkaError, NotAuthorized, ProgressMissing
from tailrace.kafka import source
from tailrace.kafka.clients import in_thread
from tailrace.progress.lease import Holder, Lease, Phase, next_in_line, running
from tailrace.startup import warming
from tailrace.status.events import StandingBy, Stopped

ASK_EVERY = 0.2
_UNLISTED = 5  # leases for which the brokers do not list this driver until it joins anew
_WARM_EVERY = 25.0  # Spark ends a Python worker that has been idle for a minute


@dataclass(frozen=True)
class Standby:
    """A driver that does not lead its pipeline yet."""

    context: Context
    spark: SparkSession
    warm: Callable[[], None]  # run the pipeline's stages on no records
    lease: Lease

    def wait(self) -> bool:
        """Prepare, report that, and wait; return True when it is this driver's turn, False after a stop request."""
        pipeline, ledger, cluster = self.context.pipeline, self.context.ledger, self.context.cluster
        plan = ledger.latest()
        if plan is not None:
            recovery.check_same(pipeline, plan, source.ids(pipeline, cluster, recovery.known_ids(plan)))
            recovery.check_kind(pipeline, plan)
        else:
            self._check_new()
        ledger.prepare()
        cold = []
        for step in (self._warm_workers, self.warm):
            if self.context.stop.event.is_set():
                return self._stopped()
            try:
                step()
            except warming.LOST as problem:
                cold.append(f"{type(problem).__name__}: {str(problem).splitlines()[0][:200]}")
        self.lease.hold(Phase.STANDBY)
        return self._turn(cold) or self._stopped()

    def _check_new(self) -> None:
        """Refuse a ledger without plans of a pipeline that has some elsewhere. Its first driver may be planning."""
        pipeline, ledger, cluster = self.context.pipeline, self.context.ledger, self.context.cluster
        try:
            recovery.check_new(pipeline, ledger, cluster, {})  # a running driver's transactions would hide the markers
        except ProgressMissing:
            if ledger.latest() is None:
                raise

    def _turn(self, cold: list[str]) -> bool:
        """Return whether it is this driver's turn; keep warm meanwhile, in a thread of its own.

        A standby that has lost its executors waits there for others, and must not stand in the way of the next one.
        """
        announced, warmed, heard = False, time.monotonic(), time.monotonic()
        warm: Future[None] | None = None
        while not self.context.stop.event.wait(ASK_EVERY if announced else 0.02):
            if self.lease.problem is not None:  # never a member, so never its turn
                raise self.lease.problem
            try:
                holders = running(self.context.cluster, self.context.pipeline.pipeline)
                listed = any(each.run == self.context.run for each in holders)
                ready = announced or (listed and self._accepted(holders[0]))
            except NotAuthorized:
                raise
            except KafkaError:  # unreachable brokers say nothing about the other driver, and nobody could take over
                with contextlib.suppress(KafkaError):
                    self.context.cluster.topics()  # replaces a client that knows none of them any more
                continue
            now = time.monotonic()
            heard = now if listed else heard
            if now - heard > _UNLISTED * self.context.pipeline.ledger.lease:
                self.lease.hold(Phase.STANDBY)  # that client may not hear of the brokers for good
                heard = now
            if next_in_line(holders, self.context.run):
                self.lease.hold(Phase.LEADING)
                if warm is not None and not warm.done():
                    self.spark.sparkContext.cancelAllJobs()
                return True
            if ready and not announced:
                announced = True
                self._say(holders[0], cold)
            if now - warmed > _WARM_EVERY and (warm is None or warm.done()):
                warm, warmed = in_thread("tailrace-warm", self._warm_workers), now  # its failure costs only speed
        return False

    def _accepted(self, first: Holder) -> bool:
        """Return whether the ledger's open batch would let this driver take over, as far as can be known now.

        A leader that has planned a batch finishes its batches. One that has not may be starting again and again, on an
        open batch of an earlier run, which this driver's code might have to refuse.
        """
        plan, assembly = self.context.ledger.latest(), self.context.assembly
        return (
            plan is None
            or plan.done
            or plan.run == first.run
            or recovery.repeatable(plan, assembly.rules, assembly.code, assembly.settings)
        )

    def _say(self, first: Holder, cold: list[str]) -> None:
        leader = {"run": first.run, "host": first.host} if first.phase is Phase.LEADING else None
        self.context.emit(StandingBy(self.context.pipeline.pipeline, self.context.run, leader, cold))

    def _stopped(self) -> bool:
        self.context.emit(Stopped(self.context.stop.reason, None))
        return False

    def _warm_workers(self) -> None:
        warming.workers(self.spark)
