"""A driver without Spark, as a process that can be killed: `python -m faults.worlds.thread_driver FILE`.

With two times and two topics it does a backfill, as `tailrace backfill` does with Spark.

It prints the events of `tailrace run --output json`, stops on SIGTERM as that does, and ends with an error's exit code.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from faults.worlds import history
from support.threads import run_in_threads
from tailrace import crash_points
from tailrace.admin.backfill import Request, begin, derived, extent
from tailrace.config import Pipeline, file
from tailrace.driver.shutdown import Stop
from tailrace.driver.tasks import BatchInfo
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.errors import InputCutOff, TailraceError
from tailrace.gateway import Written
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.signals import on_signals
from tailrace.status.events import Event


class GivingUp(ThreadEngine):
    """An engine that begins no other attempt for a delivery that has failed, as Spark does not.

    While the batch is delivered again, such an attempt would cut off the one that reads in its place, as often as that
    is tried: then the driver ends.
    """

    def __init__(self, pipeline: Pipeline, folder: Path, run: str) -> None:
        super().__init__(pipeline, folder, run)
        self._deliveries = 0
        self._own = threading.local()

    def deliver(self, *given: Any, **options: Any) -> list[Written]:
        """See `Engine.deliver`."""
        self._deliveries += 1
        try:
            return super().deliver(*given, **options)
        finally:
            self._deliveries += 1

    def _part(self, info: BatchInfo, number: int) -> Written:
        self._own.delivery = self._deliveries
        return super()._part(info, number)

    def _attempt(self, info: BatchInfo, number: int) -> Written:
        if self._own.delivery != self._deliveries:
            raise InputCutOff("the delivery that this attempt belongs to has failed", kept="nothing was read for it")
        return super()._attempt(info, number)


def main(path: str, *backfill: str) -> int:
    """Run the pipeline until SIGTERM, or a backfill to its end."""
    crash_points.root()
    if history.HISTORY in os.environ:
        history.record(Path(os.environ[history.HISTORY]))
    stop = Stop()
    on_signals(stop)
    loaded = file.load(Path(path))
    pipeline, folder, run = loaded.pipeline, loaded.folder, uuid.uuid4().hex[:12]
    try:
        if backfill:
            pipeline = begun(pipeline, *backfill)
        run_in_threads(
            pipeline, folder, run, lambda: GivingUp(pipeline, folder, run), emit, stop=stop,
            until_read=bool(backfill),
        )  # fmt: skip
    except TailraceError as error:
        sys.stdout.write(json.dumps(error.as_dict()) + "\n")
        sys.stdout.flush()
        return error.exit_code
    return 0


def begun(pipeline: Pipeline, since: str, until: str, into: str, rejected: str) -> Pipeline:
    """Return the pipeline of a backfill, whose range is in the ledger."""
    request = Request(
        datetime.fromisoformat(since), datetime.fromisoformat(until), into, rejected, of=pipeline.pipeline
    )
    found, cluster = derived(pipeline, request, datetime.now(UTC)), Cluster(pipeline.kafka)
    with Ledger.of(found) as ledger:
        range_ = extent(found, request, cluster, ledger)
        if not range_.begun:
            begin(found, range_, cluster, ledger)
    return found


def emit(event: Event) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps(event.as_dict()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
