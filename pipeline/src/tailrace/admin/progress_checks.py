"""The doctor's questions about a pipeline's progress: may markers of an open batch expire, does the store answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Pipeline, StoreKind
from tailrace.errors import TailraceError
from tailrace.kafka.cluster import Cluster
from tailrace.progress.expiry import Retention, duration, missing, retention
from tailrace.progress.lease import running
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store


def progress(pipeline: Pipeline, folder: Path, file: Path) -> Iterator[Check]:
    """Each in turn; a ledger that does not exist yet is not made."""
    cluster = Cluster(pipeline.kafka)
    try:
        if pipeline.ledger.topic in cluster.topics():
            yield _open_batch(pipeline, cluster, file)
    except TailraceError as error:
        yield warn("open batch", error.what, error.then)
    if pipeline.offsets.store is not StoreKind.KAFKA:
        yield _store(pipeline, folder, cluster)


def _open_batch(pipeline: Pipeline, cluster: Cluster, file: Path) -> Check:
    from tailrace.admin.offsets import open_parts  # brings Spark, which --help should not wait for

    if running(cluster, pipeline.pipeline):
        return ok("open batch", "the pipeline is running")
    with Ledger.of(pipeline) as ledger:
        plan = ledger.latest()
        if plan is None or plan.done:
            return ok("open batch", "none")
        markers = ledger.markers()
        undelivered = open_parts(plan, markers, ledger)
    if not undelivered:
        return ok("open batch", f"none: every sink partition of batch {plan.batch} is written")
    found = (
        f"batch {plan.batch} was planned {duration(time.time() - plan.at)} ago, and {len(undelivered)} of its "
        f"{plan.sinks} sink partitions are not known to be delivered"
    )
    lacking = missing(plan, markers)
    if not lacking:  # the marker of an earlier batch says that this one is not written: there is nothing to expire
        return warn("open batch", found, f"tailrace run {file} --batch")
    kept = retention(cluster.admin)
    found += f"; {len(lacking)} markers are missing"
    if overdue(plan.at, time.time(), kept):
        return fail("open batch", f"{found}, and may have expired", "tailrace explain TR-306")
    left = duration(plan.at + kept.certain - time.time())
    return warn("open batch", f"{found}; markers may have expired in {left}", f"tailrace run {file} --batch")


def overdue(at: float, now: float, kept: Retention) -> bool:
    """Whether a marker that is missing now may have been forgotten."""
    return now - at >= kept.certain


def _store(pipeline: Pipeline, folder: Path, cluster: Cluster) -> Check:
    from tailrace.kafka import source

    try:
        with contextlib.closing(open_store(pipeline, folder)) as store:
            found = store.load(source.partitions_of(pipeline, cluster))
            return ok("offset store", f"{store.where}: offsets of {len(found)} partitions")
    except TailraceError as error:
        return fail("offset store", error.what, error.then)
