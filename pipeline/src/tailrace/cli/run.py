"""`tailrace run`: run a pipeline until it is stopped."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import terminal
from tailrace.cli.last_words import last_words
from tailrace.cli.ready import ReadyFile
from tailrace.cli.renewal import Renewal, certificates, copies
from tailrace.cli.terminal import LiveTable, Output, chosen, log_to_stderr
from tailrace.config.file import load
from tailrace.progress.lease import Holder
from tailrace.signals import on_signals
from tailrace.startup.api_server import Pods
from tailrace.startup.successor import resign
from tailrace.status.event_lines import line
from tailrace.status.events import BatchWritten, Emit, Event, to_each

if TYPE_CHECKING:
    from tailrace.driver.shutdown import Stop

COLUMNS = (
    "batch",
    "in",
    "limit",
    "out",
    "rejected",
    "skipped",
    "seconds",
    "commit ms",
    "lag",
)  # of the rows of `as_rows`


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline's configuration, a YAML file.")],
    batch: Annotated[bool, typer.Option("--batch", help="Process the records present now, then exit.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Warm up next to the running driver, and take over when it is gone.")
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            help="File that exists while the driver reads new records, or is a ready standby.",
        ),
    ] = None,
    error_file: Annotated[
        Path | None, typer.Option("--error-file", help="File to which the error is written that ends the run, if any.")
    ] = None,
    until_renewed: Annotated[
        bool,
        typer.Option(
            "--until-renewed", help="Exit when a certificate in kafka.options is renewed, to be restarted from outside."
        ),
    ] = False,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            exists=True,
            file_okay=False,
            help="Folder with copies of what the environment holds: --until-renewed watches them as well.",
        ),
    ] = None,
    by_successor: Annotated[
        bool,
        typer.Option(
            "--by-successor", help="With --until-renewed, in a pod: have Kubernetes replace the pod instead of exiting."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Replace a running driver without asking; off a terminal, nobody is asked.")
    ] = False,
    output: Annotated[
        Output,
        typer.Option(
            "--output", "-o", callback=chosen, help="Text for people; or one JSON object or YAML document per event."
        ),
    ] = Output.TEXT,
) -> None:
    """Run a pipeline. Ctrl-C or SIGTERM finishes the batch in progress, then exits.

    A second signal gives the batch up; the next start finishes it.
    """
    if batch and standby:
        raise typer.BadParameter(
            "--standby waits to take over a pipeline that runs until stopped; --batch ends by itself",
            param_hint="--standby",
        )
    with last_words(error_file):
        loaded = load(file)
    ready = ReadyFile(ready_file)
    log_to_stderr()
    from tailrace.startup.run import run as drive  # imports Spark, which --help should not wait for

    stop = stops_on_signals()

    def renewed(reason: str) -> None:
        if by_successor:
            resign(Pods.around(os.environ), os.environ.get("POD_NAME", ""), stop, reason)
        else:
            stop(reason)

    declined: list[Holder] = []
    files = certificates(loaded.pipeline) + (copies(secrets) if secrets is not None else ())
    with last_words(error_file), ready, Renewal(files if until_renewed else (), renewed):
        if output is Output.JSON:
            emit = to_each(as_json, ready.heard)
            drive(loaded.pipeline, loaded.folder, batch=batch, standby=standby, emit=emit, stop=stop)
        else:
            with LiveTable(COLUMNS) as table:
                emit = to_each(as_rows(table), ready.heard)
                replaces = None if yes or not _on_a_terminal() else partial(_replaces, _asked(table), declined)
                drive(
                    loaded.pipeline,
                    loaded.folder,
                    batch=batch,
                    standby=standby,
                    emit=emit,
                    stop=stop,
                    replaces=replaces,
                )
    if batch and (stop.event.is_set() or declined):  # what follows must not take all records for delivered
        raise typer.Exit(1)


def stops_on_signals() -> Stop:
    """Return a stop that SIGTERM and Ctrl-C request; a second one hurries it."""
    from tailrace.driver.shutdown import Stop

    stop = Stop()
    on_signals(stop, stop.hurry)
    return stop


def _on_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _replaces(ask: Callable[[Holder], bool], declined: list[Holder], leader: Holder) -> bool:
    """Ask whether a running driver is to be replaced, and note one that is not."""
    if ask(leader):
        return True
    declined.append(leader)
    return False


def _asked(table: LiveTable) -> Callable[[Holder], bool]:
    """Return what asks whether a running driver is to be replaced."""

    def replaces(leader: Holder) -> bool:
        since = datetime.datetime.fromtimestamp(leader.since).astimezone().isoformat(sep=" ", timespec="minutes")
        table.note(f"another driver of this pipeline is running on {leader.host} since {since} (run {leader.run})")
        return typer.confirm("Replace it? It will stop", default=False)

    return replaces


def as_json(event: Event) -> None:
    """Print an event as one JSON document."""
    terminal.emit(event.as_dict())


def as_rows(table: LiveTable) -> Emit:
    """Return what shows events to people: batches as rows, the others as lines."""

    def emit(event: Event) -> None:
        if isinstance(event, BatchWritten):
            table.row(
                event.batch, event.read, event.limit, event.out, event.rejected, event.skipped, event.seconds,
                event.commit_ms, event.lag,
            )  # fmt: skip
        elif (text := line(event)) is not None:
            table.note(text)

    return emit
