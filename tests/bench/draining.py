"""Throughput and batch time: a side drains a topic that was filled in advance.

The first records warm the side and are not counted. The clock starts when their outputs are visible to a read_committed
consumer, and stops when all outputs are; both moments are observed from outside, in the same way for both sides.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.counting import Ends, check, read, tally
from bench.feeding import topic
from bench.figures import Measured
from bench.processes import Snapshot, between, spark_cpu
from bench.sides import BenchFailed, Side, Stand
from bench.steps import steps
from bench.workloads import NATIVE, Workload, projected

LOOK_EVERY = 0.05
QUIET = 1.5  # seconds without a change after which the output counts as complete
DRAIN_LIMIT = 900.0


@dataclass(frozen=True)
class Drained:
    """The part of a run that counts."""

    records: float  # read from the source
    first: Snapshot
    last: Snapshot


def watch(total: Callable[[], int], side: Side, workload: Workload, warm: int, records: int) -> Drained:
    """Follow the output until all of it is visible; TimeoutError tells how far it got."""
    expected, beginning = workload.outputs(records), workload.outputs(warm)
    first: tuple[int, Snapshot] | None = None
    last: Snapshot | None = None
    seen, changed = 0, time.monotonic()
    until = time.monotonic() + DRAIN_LIMIT
    while last is None or time.monotonic() - changed < QUIET:
        now = total()
        if now != seen:
            seen, changed = now, time.monotonic()
            if first is None and now >= beginning:
                first = (now, side.look())
            if now >= expected:  # control records count, so a few outputs may still be missing
                last = side.look()
        side.check()
        if time.monotonic() > until:
            raise TimeoutError(
                f"waited {DRAIN_LIMIT:.0f} s for {expected} records of {side.variant}; {seen} are visible\n{side.log}"
            )
        time.sleep(LOOK_EVERY)
    if first is None or first[0] >= expected:
        raise BenchFailed(f"{side.variant} showed nothing between {beginning} and {expected} records")
    return Drained((expected - first[0]) * records / expected, first[1], last)


def drain(
    stand: Stand, workload: Workload, variant: str, source: str, number: int, warm: int, records: int
) -> Measured:
    """Run one side over the source's first `records` records and check what it wrote."""
    with topic(stand.bootstrap, "out", workload.partitions) as target:
        with stand.running(workload, variant, source, target) as side:
            ends = Ends(stand.bootstrap, target, workload.partitions)
            drained = watch(ends.total, side, workload, warm, records)
            side.stop()
        verify(stand, workload, side, target, records)
    used = between(drained.first, drained.last)
    each = used.per_record(drained.records)
    values = {"rate": drained.records / used.seconds, "cpu": spark_cpu(each)}
    curve: list[float] = []
    spent = steps(side.events, drained.first.at, drained.last.at) if variant != NATIVE else {}
    if workload.per_batch is not None:
        curve = batch_seconds(side, workload, warm // workload.per_batch)
        values["seconds"] = statistics.median(curve)
    return Measured(workload.name, variant, number, values, each, used.others, curve, spent)


def verify(stand: Stand, workload: Workload, side: Side, target: str, records: int) -> None:
    """Tick off every output, and every record that Tailrace rejected."""
    expected = np.array([workload.accepts(number) for number in range(records)])
    exactly = side.variant != NATIVE
    numbers, sample = read(stand.bootstrap, target, workload.partitions, workload.number)
    check(tally(numbers, expected), workload.outputs(records), side.variant, exactly=exactly)
    if workload.failing is None:
        return
    record = workload.record(workload.number(sample))
    if json.loads(sample) != projected(record):
        raise BenchFailed(f"{side.variant} wrote {sample!r} for {record!r}")
    if exactly:
        numbers, _ = read(stand.bootstrap, side.rejected, 1, workload.number)
        check(tally(numbers, ~expected), records - workload.outputs(records), "tailrace, rejected", exactly=True)


def batch_seconds(side: Side, workload: Workload, warm: int) -> list[float]:
    """Return the seconds of each batch that counts.

    Native: its own triggerExecution. Tailrace: from the end of one batch to the end of the next while there is a
    backlog, which is the full cost of a batch, including the time between two.
    """
    written = side.written()
    if written and written[-1][1]["in"] != workload.per_batch:
        written = written[:-1]  # the remaining backlog, if a batch of the warm-up was smaller
    odd = [event["in"] for _, event in written[warm:] if event["in"] != workload.per_batch]
    if odd or len(written) <= warm:
        raise BenchFailed(
            f"{side.variant} reported {len(written)} complete batches, {warm} for warm-up, and batches of {odd[:5]} "
            f"records instead of {workload.per_batch}"
        )
    if side.variant == NATIVE:
        return [float(event["seconds"]) for _, event in written[warm:]]
    times = [at for at, _ in written]
    return [later - earlier for earlier, later in zip(times[warm - 1 :], times[warm:], strict=False)]
