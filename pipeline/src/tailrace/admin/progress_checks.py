"""The doctor's checks of a pipeline's progress: whether markers of an open batch may expire, and the offset store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Pipeline, StoreKind
from tailrace.errors import PlanOfAnother, TailraceError
from tailrace.kafka import source
from tailrace.kafka.cluster import Cluster
from tailrace.progress.expiry import Retention, duration, missing, retention
from tailrace.progress.lease import running
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import BEFORE_FIRST, SinkPartition
from tailrace.progress.settling import markers_at_rest
from tailrace.progress.stores import open_store
from tailrace.progress.stream_plan import StreamPlan


def progress(pipeline: Pipeline, folder: Path, file: Path) -> Iterator[Check]:
    """Run each check in turn; do not create a missing ledger."""
    cluster = Cluster(pipeline.kafka)
    try:
        if pipeline.ledger.topic in cluster.topics():
            yield _open_batch(pipeline, cluster, file)
    except TailraceError as error:
        yield warn("open batch", error.what, error.then)
    yield from _last_plan(pipeline, cluster)
    if pipeline.offsets.store != StoreKind.KAFKA:
        yield _store(pipeline, folder, cluster)


def _last_plan(pipeline: Pipeline, cluster: Cluster) -> Iterator[Check]:
    """Check whether a start would refuse the last plan: it was made for another sink, or for topics of other ids."""
    from tailrace.driver import recovery  # imports Spark

    with contextlib.suppress(TailraceError):  # what keeps us from comparing has a line of its own
        if pipeline.ledger.topic not in cluster.topics():
            return
        markers: Mapping[SinkPartition, Marker] = {}
        with Ledger.of(pipeline) as ledger:
            plan = ledger.latest()
            if isinstance(plan, StreamPlan) and not plan.done and not running(cluster, pipeline.pipeline):
                markers = markers_at_rest(pipeline, ledger)
        if plan is None:
            return
        try:
            recovery.check_same(pipeline, plan, source.ids(pipeline, cluster, recovery.known_ids(plan)))
            if isinstance(plan, StreamPlan):
                recovery.check_sink(pipeline, plan, markers)
        except PlanOfAnother as error:
            yield fail("last plan", error.what, error.then)
            return
        last = (
            f"batch {plan.batch} has" if plan.batch > BEFORE_FIRST else "there is no batch yet, and where it begins has"
        )
        yield ok("last plan", f"{last} this source and sink")


def _open_batch(pipeline: Pipeline, cluster: Cluster, file: Path) -> Check:
    from tailrace.admin.offsets import open_parts  # imports Spark, which --help should not wait for

    if running(cluster, pipeline.pipeline):
        return ok("open batch", "the pipeline is running")
    with Ledger.of(pipeline) as ledger:
        plan = ledger.latest()
        if plan is None or plan.done:
            return ok("open batch", "none")
        markers = markers_at_rest(pipeline, ledger)
        undelivered = open_parts(plan, markers, ledger)
    if not undelivered:
        return ok("open batch", f"none: every sink partition of batch {plan.batch} is written")
    found = (
        f"batch {plan.batch} was planned {duration(time.time() - plan.at)} ago, and {len(undelivered)} of its "
        f"{plan.sinks} sink partitions are not known to be delivered"
    )
    lacking = missing(plan, markers)
    if not lacking:  # an earlier batch's marker proves that this one is not written: nothing can expire
        return warn("open batch", found, f"tailrace run {file} --batch")
    kept = retention(cluster.admin)
    found += f"; {len(lacking)} markers are missing"
    if overdue(plan.at, time.time(), kept):
        return fail("open batch", f"{found}, and may have expired", "tailrace explain TR-306")
    left = duration(plan.at + kept.certain - time.time())
    return warn("open batch", f"{found}; markers may have expired in {left}", f"tailrace run {file} --batch")


def overdue(at: float, now: float, kept: Retention) -> bool:
    """Return whether a marker missing now may have expired."""
    return now - at >= kept.certain


def _store(pipeline: Pipeline, folder: Path, cluster: Cluster) -> Check:
    from tailrace.kafka import source

    try:
        with contextlib.closing(open_store(pipeline, folder)) as store:
            found = store.load(source.partitions_of(pipeline, cluster))
            return ok("offset store", f"{store.where}: offsets of {len(found)} partitions")
    except TailraceError as error:
        return fail("offset store", error.what, error.then)
