"""A driver without Spark, as a process that can be killed: `python -m faults.worlds.thread_driver FILE`.

It prints the events of `tailrace run --output json`, stops on SIGTERM as that does, and ends with an error's exit code.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import uuid
from pathlib import Path

from tailrace import crash_points
from tailrace.config import file
from tailrace.driver import recovery, start
from tailrace.driver.context import Context, Unwatched
from tailrace.driver.offset_mirror import OffsetMirror
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.errors import TailraceError
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store
from tailrace.stages.assembly import Assembly
from tailrace.startup.run import preflight
from tailrace.status.events import Event


def main(path: str) -> int:
    """Run the pipeline until SIGTERM."""
    crash_points.root()
    stop = Stop()
    signal.signal(signal.SIGTERM, lambda *_: stop("SIGTERM"))
    loaded = file.load(Path(path))
    pipeline, folder = loaded.pipeline, loaded.folder
    cluster, run = Cluster(pipeline.kafka), uuid.uuid4().hex[:12]
    try:
        preflight(pipeline, cluster)
        engine = ThreadEngine(pipeline, folder, run)
        with (
            contextlib.closing(engine),
            Ledger.of(pipeline) as ledger,
            contextlib.closing(OffsetMirror(pipeline, lambda: open_store(pipeline, folder), emit)) as mirror,
        ):
            recovered, _ = recovery.take(pipeline, ledger, cluster)
            context = Context(
                run, pipeline, Assembly(pipeline, None, folder), cluster, ledger, mirror, emit, stop, Unwatched()
            )
            start.run(context, engine, recovered, until_read=False)
    except TailraceError as error:
        sys.stdout.write(json.dumps(error.as_dict()) + "\n")
        sys.stdout.flush()
        return error.exit_code
    return 0


def emit(event: Event) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps(event.as_dict()) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
