"""A driver without Spark, as a process that can be killed: `python -m faults.worlds.thread_driver FILE`.

It prints the events of `tailrace run --output json`, stops on SIGTERM as that does, and ends with an error's exit code.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from support.threads import run_in_threads
from tailrace import crash_points
from tailrace.config import file
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.errors import TailraceError
from tailrace.signals import on_signals
from tailrace.status.events import Event


def main(path: str) -> int:
    """Run the pipeline until SIGTERM."""
    crash_points.root()
    stop = Stop()
    on_signals(stop)
    loaded = file.load(Path(path))
    pipeline, folder, run = loaded.pipeline, loaded.folder, uuid.uuid4().hex[:12]
    try:
        run_in_threads(
            pipeline, folder, run, lambda: ThreadEngine(pipeline, folder, run), emit, stop=stop, until_read=False
        )
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
