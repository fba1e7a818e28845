"""Backfill: reading a bounded range of a pipeline's source again, into another topic, while the pipeline runs.

A backfill is a pipeline of its own, with a name derived from what was requested, so the same request continues the same
backfill. Its range is resolved once and written to the ledger as a finished plan that ends where the range begins and
names the bound. From there the ordinary start, loop and recovery apply, and every later plan repeats the bound.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tailrace.admin import copies
from tailrace.admin.since import at_time, first_since, records_since
from tailrace.config import Offsets, OnDataLoss, Pipeline
from tailrace.driver.choose import reached
from tailrace.driver.recovery import check_new
from tailrace.errors import ConfigInvalid, OffsetsOutOfRange, OptionRefused, PlanOfAnother
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.leader_ends import told_by_leaders
from tailrace.kafka.rights import Operation
from tailrace.kafka.topics import recreation, topic_ids
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import BatchId, Place, Plan, unseen
from tailrace.progress.positions import Positions, named
from tailrace.progress.predecessor import require_seen
from tailrace.progress.stream_plan import AnyPlan

_NOTHING = "nothing was read or written"
_LONGEST = 100  # characters of a pipeline's name
_SHOWN = 5
_ENDING = 5.0  # seconds that a transaction which is being ended may take


@dataclass(frozen=True)
class Request:
    """What a backfill is asked for."""

    since: datetime
    until: datetime
    into: str
    rejected: str | None = None
    partial: bool = False  # whether to accept that the topic may no longer hold the beginning of the range
    of: str = ""  # the pipeline that reads the topics, if it is one of this ledger

    def digest(self, pipeline: str) -> str:
        """Return what tells this range and topic from others; long names of pipelines are cut, so they count too."""
        text = (
            f"{pipeline} {self.since.astimezone(UTC).isoformat()} {self.until.astimezone(UTC).isoformat()} {self.into}"
        )
        found = hashlib.sha256(text.encode()).hexdigest()[:8]
        while copies.DATE.fullmatch(found):  # such a name would be a person's
            found = hashlib.sha256(found.encode()).hexdigest()[:8]
        return found


@dataclass(frozen=True)
class Extent:
    """The offsets of a backfill, and how far it has come."""

    start: Positions  # where it continues
    until: Positions
    ids: Mapping[str, str]  # of the topics whose offsets these are
    begun: bool  # whether the ledger has the bound
    finished: bool = False

    @property
    def offsets(self) -> int:
        """The number of offsets that are left to read."""
        return sum(max(0, end - self.start.get(place, 0)) for place, end in self.until.items())


def derived(pipeline: Pipeline, request: Request, now: datetime) -> Pipeline:
    """Return the pipeline that does the backfill; refuse what would be wrong."""
    refuse(pipeline, request, now)
    name = f"{pipeline.pipeline[: _LONGEST - 18].rstrip('-')}-backfill-{request.digest(pipeline.pipeline)}"
    sink = pipeline.sink.model_copy(update={"topic": request.into, "topics": [request.into]})
    found = pipeline.model_copy(
        update={
            "pipeline": name,
            # A row must not reach the pipeline's own topics, and a lost range must not be skipped.
            "sink": sink,
            "source": pipeline.source.model_copy(update={"on_data_loss": OnDataLoss.STOP}),
            "rejected": request.rejected,
            "offsets": Offsets(),  # the pipeline's own store shows the pipeline's own progress
        }
    )
    for topic in (found.rejected_topic, request.into):
        if source.reads(pipeline, topic):
            raise OptionRefused(
                f"{pipeline.pipeline!r} reads {topic!r}, so it would read what the backfill writes",
                kept=_NOTHING,
                then="name another topic with --into, or with --rejected for rejected records",
            )
    return found


def refuse(pipeline: Pipeline, request: Request, now: datetime) -> None:
    """Refuse a request that cannot be done right."""
    if pipeline.checkpoint != "ledger":
        raise ConfigInvalid(
            f"pipeline {pipeline.pipeline!r} is stateful: its outputs depend on the records before the range too",
            kept=_NOTHING,
            then="give the pipeline a new name, a new checkpoint and another sink, and run it from the beginning",
        )
    if pipeline.sink.topic is None or pipeline.sink.topics:
        raise ConfigInvalid(
            f"the rows of pipeline {pipeline.pipeline!r} name their own topics, so --into cannot redirect them",
            kept=_NOTHING,
            then="copy the file, with another name and a function that names other topics",
        )
    own = {pipeline.sink.topic: "its sink", pipeline.rejected_topic: "its rejected topic"}
    own[pipeline.ledger.topic] = "its ledger"
    for option, topic in (("--into", request.into), ("--rejected", request.rejected)):
        if topic in own:  # `tailrace rejected` would leave out what of the pipeline's own topic is the backfill's
            raise OptionRefused(
                f"{option} {topic!r} is {own[topic]} in pipeline {pipeline.pipeline!r}",
                kept=_NOTHING,
                then="name another topic"
                + ("" if option == "--into" else ", or omit it: the backfill has one of its own"),
            )
    if request.rejected == request.into:
        raise OptionRefused(
            f"--rejected and --into are both {request.into!r}", kept=_NOTHING, then="name another topic"
        )
    if not request.since < request.until <= now:
        raise OptionRefused(
            f"--from {request.since.isoformat()} to --to {request.until.isoformat()} is not a range in the past",
            kept=_NOTHING,
            then=f"choose --from before --to, and --to before now ({now.isoformat(timespec='seconds')})",
        )


def extent(pipeline: Pipeline, request: Request, cluster: Cluster, ledger: Ledger) -> Extent:
    """Return the recorded range, or resolve it if this is the first start; change nothing."""
    plan = ledger.latest()
    if plan is None:
        check_new(pipeline, ledger, cluster, ledger.markers())
        return resolved(pipeline, request, cluster, ledger.latest(request.of) if request.of else None)
    if not isinstance(plan, Plan) or plan.until is None:
        raise PlanOfAnother(
            f"{pipeline.pipeline!r} has plans in the ledger, and they are not of a backfill",
            kept=_NOTHING,
            then="rename the pipeline that has this name",
        )
    finished = plan.done and reached(plan.ends, plan.until, plan.away)
    return Extent({**unseen(plan.away), **plan.ends}, dict(plan.until), plan.topics, begun=True, finished=finished)


def resolved(pipeline: Pipeline, request: Request, cluster: Cluster, live: AnyPlan | None = None) -> Extent:
    """Ask the topics which offsets the times mean; refuse a range that may have lost its beginning.

    `live` is the last plan of the pipeline whose range it is: what that reads belongs to the range.
    """
    places = source.partitions_of(pipeline, cluster)
    if live is not None:
        require_seen(pipeline, live, places, cluster)
    # First: a topic that is created again meanwhile has another id than the one whose offsets are found.
    ids = topic_ids(cluster.admin, {topic for topic, _ in places})
    end = bound(pipeline, request, cluster, places)
    start = at_time(pipeline, cluster, places, request.since.timestamp())
    first = cluster.earliest(places)
    if not request.partial:
        refuse_cut(start, first)
    start = {place: max(offset, first[place]) for place, offset in start.items()}  # deleted since they were asked for
    start = records_since(pipeline, cluster, start, request.since.timestamp())
    until = {place: max(end[place], start[place]) for place in places}
    found = Extent(start, until, {topic: name for topic, (name, _) in sorted(ids.items())}, begun=False)
    if not found.offsets:  # recorded, it would count as finished for ever, whatever arrives later
        raise OptionRefused(
            f"{len(places)} partitions of {', '.join(sorted({topic for topic, _ in places}))} hold no record from "
            f"{request.since.isoformat()} to {request.until.isoformat()}",
            kept=_NOTHING,
            then="choose another --from and --to, by the times of the records",
        )
    return found


def bound(pipeline: Pipeline, request: Request, cluster: Cluster, places: list[Place]) -> Positions:
    """Return where the range ends; refuse one that is not stable yet, or that a former leader would cut short.

    Behind an open transaction nothing can be read, and its own records may belong to the range: an end there would
    leave them out without a word. One that was just committed is waited for: brokers answer before it has ended.
    """
    until, since = request.until.timestamp(), time.monotonic()
    found = told_by_leaders(cluster, places, lambda: first_since(cluster, places, until), _NOTHING)
    while True:
        end = records_since(pipeline, cluster, found, until)
        stable = source.ends(pipeline, places, cluster)
        waiting = sorted(place for place in places if stable[place] < end[place])
        if not waiting or time.monotonic() - since > _ENDING:
            break
        time.sleep(0.1)
    if waiting:
        shown = ", ".join(f"{named(place)} at {stable[place]}" for place in waiting[:_SHOWN])
        raise OptionRefused(
            f"an open transaction of another producer lies before the end of the range in {len(waiting)} partitions "
            f"({shown}), so its records cannot be read yet",
            kept=_NOTHING,
            then="repeat the command when it has ended, or choose an earlier --to",
        )
    return end


def refuse_cut(start: Positions, first: Positions) -> None:
    """Refuse a range that begins at the first offset that is left: records before it were deleted, maybe of the range.

    It begins before that offset if they were deleted since its start was asked for. A partition whose first offset is
    0 has lost nothing, and an older record that is left shows that the range is whole.
    """
    cut = sorted(place for place, offset in start.items() if first[place] > 0 and offset <= first[place])
    if cut:
        shown = ", ".join(f"{named(place)} from {first[place]}" for place in cut[:_SHOWN])
        raise OffsetsOutOfRange(
            f"records of the range may have been deleted: in {len(cut)} partitions it begins with the first record "
            f"that is left ({shown})",
            kept=_NOTHING,
            then="choose a later --from, or accept what is left with --partial",
        )


def begin(pipeline: Pipeline, found: Extent, cluster: Cluster, ledger: Ledger) -> None:
    """Record the range in the ledger, before anything is planned."""
    cluster.require(pipeline.sink.named, "sink topic", Operation.WRITE)
    read = {topic for topic, _ in found.until}
    now = topic_ids(cluster.admin, read)
    if again := {topic for topic in read if topic not in now or now[topic][0] != found.ids.get(topic)}:
        raise recreation(again, "since its range was asked for", _NOTHING, "repeat the command")
    ledger.take()
    if ledger.latest() is not None:
        return  # another start of the same backfill came first; its range holds
    plan = Plan(
        pipeline=pipeline.pipeline,
        batch=BatchId(0),
        sink=pipeline.sink.topic or "",
        topics=found.ids,
        parts=(),
        outputs=0,
        ends=found.start,
        at=time.time(),
        delivery=pipeline.sink.delivery,
        done=True,
        until=found.until,
    )
    ledger.settle(plan, found.start)
