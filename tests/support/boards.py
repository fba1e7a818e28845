"""What a driver's board is told in tests."""

from __future__ import annotations

import json
from typing import Any

from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.snapshots import Finished, LagSeen, Progress
from tailrace.telemetry import metrics

PLACE = ("in", 0)


class Clock:
    """A clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.now


def lag(clock: Clock, records: int) -> LagSeen:
    """Return a lag that is observed now."""
    return LagSeen(clock.now, {PLACE: 100}, {PLACE: 100 + records}, oldest=clock.now - 5 if records else None)


def batch(clock: Clock, number: int = 0, *written: Written) -> Finished:
    """Return a batch that finished now."""
    written = written or (Written(SinkPartition(0), False, out=9, rejected=1, gateway="w", reasons={"bad": 1}),)
    return Finished(number, 10, written, {"deliver": 0.5}, False, clock.now)


def progress(number: int = 0, **more: Any) -> Progress:
    """Return what Spark reports about a batch of ten records, one of them rejected."""
    said = {
        "batchId": number,
        "numInputRows": 20,
        "inputRowsPerSecond": 40.0,
        "processedRowsPerSecond": 80.0,
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "observedMetrics": {
            metrics.READ: {"consumed": 10, "size": 100},
            metrics.WRITTEN: {"produced": 9, "rejected": 1},
        },
    }
    return Progress.read(json.dumps(said | more))
