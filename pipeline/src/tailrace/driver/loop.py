"""The loop: look at the source, choose a batch, write its plan, deliver it, report.

A separate thread delivers each batch; meanwhile the loop looks ahead and watches for a stop. Every batch is delivered
from its plan, so the replay at startup is the same call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tailrace import crash_points, errors
from tailrace.config import Delivery, OnDataLoss
from tailrace.crash_points import Point
from tailrace.driver.brokers import Brokers, asking
from tailrace.driver.choose import choose
from tailrace.driver.context import Context
from tailrace.driver.engine import Engine, Parts
from tailrace.driver.faulty import Tolerant, told
from tailrace.driver.lead import Renewal, overtaken, require_lead
from tailrace.driver.look import Look, Seen
from tailrace.driver.naming import described, shown
from tailrace.driver.pace import Pace
from tailrace.driver.phases import Phases
from tailrace.driver.shutdown import unfinished
from tailrace.driver.source_changes import changes, losses
from tailrace.driver.spark_errors import failure
from tailrace.driver.target import Target
from tailrace.gateway import Written
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import Away, BatchId, Plan, SinkPartition
from tailrace.progress.positions import bounded
from tailrace.progress.stream_plan import AnyPlan
from tailrace.stages.rules import check, stopping
from tailrace.status.events import BatchPlanned, BatchWritten, Idle, Noted, Stopped
from tailrace.status.snapshots import Finished

T = TypeVar("T")

IDLE_AFTER = 1.0  # seconds without a batch before the last one is recorded as done
_TICK = 0.2  # seconds between checks of everything other than the batch
_PAUSES = (0.005, 0.01, 0.02, 0.04)  # seconds between looks at a source without new records
_FRESH = 1.0  # maximum age of a look ahead, in seconds
_AHEAD_AFTER = 0.05  # seconds into a batch before the loop looks ahead
_AHEAD_EVERY = 0.5


@dataclass
class Loop:
    """The batch loop of one run; used by a single thread."""

    context: Context
    engine: Engine
    plan: AnyPlan | None = None  # the last plan
    positions: TopicPartitions = field(default_factory=dict)
    delivered: bool = True  # whether the last plan is delivered
    marked: float = 0.0  # when markers were last committed
    away: Away = field(default_factory=dict)  # positions of topics that are not seen now

    def __post_init__(self) -> None:
        self.pace = Pace(self.context.pipeline, self.context.ledger.partitions)
        # The session's settings are those of now: the function, which was called first, may have set some itself.
        own = self.context.assembly
        self._rules, self._code, self._settings = own.rules, own.code, own.settings
        self._owners: dict[SinkPartition, str] = {}
        self._ahead: Seen | None = None
        self._backlog = False  # whether the batch left records behind; if not, a look ahead would be stale when used
        self._ends: TopicPartitions = {}
        self._target = Target()
        self._ids: Mapping[str, str] = {}
        self._phases = Phases()
        self._threads = ThreadPoolExecutor(1, "tailrace-deliver")
        self._ticked = 0.0
        self._settled: TopicPartitions | None = None  # where the last plan was noted as done
        self._idle: TopicPartitions | None = None  # where it was reported
        self._brokers = Brokers(self.context.emit, asking(self.context.pipeline.kafka))
        self._written: list[Written] = []
        ledger = self.context.ledger
        self._renewal = Renewal(ledger, self.context.pipeline, self.context.renew_every)
        self._tolerant = Tolerant(self.engine, self.context.pipeline, lambda: not ledger.overtaken())

    @property
    def last(self) -> int:
        """The number of the last planned batch; -1 before the first."""
        return self.plan.batch if self.plan is not None else -1

    @property
    def _until(self) -> TopicPartitions | None:
        """Where a backfill ends; each plan repeats it, because the ledger keeps only the last one."""
        return dict(self.plan.until) if isinstance(self.plan, Plan) and self.plan.until is not None else None

    # -- the loop ----------------------------------------------------------------------------------

    def begin(self, ids: Mapping[str, str]) -> None:
        """Prepare the first batch; `ids` are the ids of the source topics."""
        self._ids = dict(ids)
        self.look = Look(self.context.pipeline, self.context.cluster, self._ids)
        self.pace.begin(self.positions)

    def stream(self, *, until_read: bool = False) -> None:
        """Deliver batches until a stop is requested; with `until_read`, until all records that exist now are read.

        A plan with a bound ends the run where the bound is reached.
        """
        pipeline, stop = self.context.pipeline, self.context.stop
        self._target = Target(self._until)
        since, pauses = time.monotonic(), 0
        try:
            while not stop.event.is_set():
                begun = time.monotonic()
                seen = self._look_at_source(aiming=until_read and self._target.ends is None)
                if seen is None:  # no broker answers
                    since = time.monotonic()
                    stop.event.wait(_TICK)
                    continue
                if self._batch(seen, begun):
                    since, pauses = time.monotonic(), 0
                    if pipeline.batch.trigger:
                        stop.event.wait(max(0.0, begun + pipeline.batch.trigger - time.monotonic()))
                    continue
                if self._target.met(self.positions, self.away, seen, time.monotonic() - since):
                    break
                self._tick()
                if time.monotonic() - since > IDLE_AFTER:
                    self._report_idle()
                    self._renewal.look(self.last)
                stop.event.wait(_PAUSES[min(pauses, len(_PAUSES) - 1)])
                pauses += 1
            self.settle()
        finally:
            self._threads.shutdown(wait=False)
        self.context.watcher.left()
        reason = stop.reason or "all that was there has been read"
        self.context.emit(Stopped(reason, self.last))

    def _look_at_source(self, *, aiming: bool) -> Seen | None:
        """Look at the source; None while no broker answers, which is reported once."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not aiming and time.monotonic() - ahead.at < _FRESH:
            return ahead
        try:
            look = partial(self.look, self.positions)
            seen = self._target.aim(self.context.cluster, look) if aiming else look()
        except (errors.BrokerUnreachable, errors.KafkaFailed) as error:
            self._brokers.silent(error.what)
            self._tick()
            return None
        self._brokers.answered()
        return seen

    def _batch(self, seen: Seen, begun: float) -> bool:
        """Choose, plan and deliver one batch; False if there is nothing to read."""
        context, number = self.context, BatchId(self.last + 1)
        self._phases.begin(look=time.monotonic() - begun)
        with self._phases.timed("choose"):
            self._admit(seen)
            self._ends = seen.ends
            cut = self.engine.cut
            width = self.pace.width(self.engine.slots, cut)
            parts = choose(self.positions, self._target.bound(seen.ends), self.pace.limit, number, width)
        if not parts:
            return False
        limit = self.pace.limit
        after = self.positions | {each.place: each.end for part in parts for each in sorted(part)}
        self._backlog = any(end > after.get(place, end) for place, end in seen.ends.items())
        plan = Plan(
            pipeline=context.pipeline.pipeline,
            batch=number,
            sink=context.pipeline.sink.topic or "",
            topics={
                topic: seen.topics[topic] for topic in sorted({place[0] for place in after if place[0] in seen.topics})
            },
            parts=parts,
            outputs=cut.outputs if cut.outputs is not None else len(parts),
            ends=after,
            shuffles=cut.shuffles,
            cut=cut.how,
            judges=cut.judges,
            run=context.run,
            at=time.time(),
            marked=self.marked,
            delivery=context.pipeline.sink.delivery,
            rules=self._rules,
            code=self._code,
            settings=self._settings,
            until=self._until,
            away=self.away,
        )
        self._check_rules(plan)
        with self._phases.timed("ledger"):
            context.ledger.write(plan, self.positions)
        self.plan, self.delivered = plan, False
        self._settled = self._idle = None  # a topic created again may be filled to the same offset
        context.mirror.planned(plan, self.positions, self._phases.seconds["ledger"])
        written = self.deliver(plan, limit=limit)
        self.positions = dict(after)
        spent = time.monotonic() - begun
        size = sum(each.read_size for each in written)
        self.pace.learn(plan.records, size, spent, len(parts))
        context.watcher.finished(self._done(plan, written, seconds=spent))
        crash_points.at(Point.BATCH_RETURNED, number)
        return True

    def _check_rules(self, plan: Plan) -> None:
        """Refuse a batch in which too many records break a rule; it is not planned yet, so nothing of it is open."""
        rules = self.context.pipeline.process.validate_
        if stopping(rules):
            with self._phases.timed("rules"):
                judged = self._await(self._threads.submit(self._tolerant.judge, plan), plan)
            check(rules, judged, plan.batch, shown(plan))

    def _admit(self, seen: Seen) -> None:
        """Apply the changes in the source since the last look."""
        changed = changes(self.positions, self._ids, seen, self.away, self._until)
        if self.context.pipeline.source.on_data_loss is OnDataLoss.STOP:
            changed.refuse_loss()
        self._ids = {**self._ids, **seen.topics}
        if changed.any:
            self._target.change(changed, seen.ends)
            earliest = self.context.cluster.earliest([*changed.new, *(short.place for short in changed.behind)])
            for event in changed.events(earliest, bounded=self._until is not None):
                self.context.emit(event)
            self.positions, self.away = changed.moved(self.positions, earliest), changed.away
            if isinstance(self.plan, Plan):  # so that it is noted with the last batch
                self.plan = replace(self.plan, away=self.away)

    # -- one batch ---------------------------------------------------------------------------------

    def deliver(
        self, plan: Plan, *, limit: int | None = None, gone: frozenset[str] = frozenset(), seen: Parts = frozenset()
    ) -> list[Written]:
        """Deliver a plan, new or from the ledger, and report it; after a stop request, within `batch.drain`."""
        replay = limit is None
        self.context.emit(BatchPlanned.of(plan, replay=replay))
        with self._phases.timed("deliver"):
            job = self._threads.submit(self._tolerant.deliver, plan, self._owners, gone, seen)
            written = self._await(job, plan)
        crash_points.at(Point.BATCH_DONE, plan.batch)
        self._owners |= {each.partition: each.gateway for each in written}
        self.delivered = True
        if plan.delivery is Delivery.EXACTLY_ONCE:
            self.marked = time.time()
        if self._tolerant.rejected:
            self.context.emit(Noted(told(plan.batch, self._tolerant.rejected)))
        for each in losses(written):
            self.context.emit(each)
        self._written = written
        self._report(plan, written, None if replay else self.pace.limit)
        return written

    def _done(self, plan: Plan, written: list[Written], *, replay: bool = False, seconds: float = 0.0) -> Finished:
        return Finished(
            plan.batch,
            sum(each.read for each in written),
            tuple(written),
            dict(self._phases.seconds),
            replay,
            time.time(),
            self.pace.limit,
            seconds,
            self.engine.observed,
        )

    def replayed(self, plan: Plan) -> None:
        """Report the batch that an earlier run left open."""
        written = self._written
        self.context.watcher.finished(self._done(plan, written, replay=True))

    def _await(self, job: Future[T], plan: Plan) -> T:
        """Wait for the batch in progress; meanwhile look ahead, and give the batch up if a stop cannot wait."""
        stop, drain = self.context.stop, self.context.pipeline.batch.drain
        stopped: float | None = None
        given_up = False
        lead = self.context.ledger, self.context.pipeline, plan.batch, self.context.run
        self._brokers.batch(partial(require_lead, *lead, is_open=True))
        while True:
            done, _ = wait([job], _AHEAD_AFTER)
            if done:
                break
            self._tick()
            try:
                self._brokers.look()
            except errors.DriverFenced:
                self._tolerant.cancel()
                raise
            for news in self._tolerant.news():
                self.context.emit(Noted(news))
            if stop.event.is_set():
                stopped = stopped or time.monotonic()
                if stop.hurried.is_set() or time.monotonic() - stopped >= drain:
                    given_up = True
                    self._tolerant.cancel()  # each time: a job that is still planned cannot be cancelled yet
            elif self._backlog and (self._ahead is None or time.monotonic() - self._ahead.at > _AHEAD_EVERY):
                with contextlib.suppress(errors.TailraceError):
                    self._ahead = self.look(self.positions)
                    crash_points.at(Point.LOOKED_AHEAD, plan.batch)
        try:
            return job.result()
        except Exception as error:
            if given_up:
                raise unfinished(stop, plan.batch, drain) from error
            reported = failure(error, self.context.pipeline, described(plan))
            raise overtaken(reported, *lead, is_open=True) from error

    def _report(self, plan: Plan, written: list[Written], limit: int | None) -> None:
        ends = self._ahead.ends if self._ahead is not None else self._ends
        if plan.until is not None:
            ends = bounded(ends, plan.until)
        lag = sum(max(0, ends.get(place, offset) - offset) for place, offset in plan.ends.items())
        seconds = self._phases.seconds["deliver"]
        rules = self.context.pipeline.process.validate_
        self.context.emit(BatchWritten.of(plan, written, rules, seconds=seconds, lag=lag, limit=limit))

    # -- between batches -----------------------------------------------------------------------------

    def _tick(self) -> None:
        if time.monotonic() - self._ticked >= _TICK:
            self._ticked = time.monotonic()
            self.context.watcher.tick()

    def _report_idle(self) -> None:
        """Settle the last batch and report that the pipeline is idle, once per position."""
        if self._idle != self.positions:
            self.settle()
            self._idle = dict(self.positions)
            self.context.emit(Idle(self.last))

    def settle(self) -> None:
        """Record in the ledger that the last batch is done, and how far it has read."""
        if not self.delivered or self._settled == self.positions:
            return
        if self.plan is not None:
            self.plan = self.plan.finished(self.positions, self._ids)
            self.context.ledger.settle(self.plan, self.positions)
        self.context.mirror.settled(self.positions)
        self._settled = dict(self.positions)
