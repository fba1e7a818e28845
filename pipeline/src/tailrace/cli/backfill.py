"""`tailrace backfill`: deliver a range of the past into another topic, while the pipeline runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.offset_words import moment
from tailrace.cli.run import COLUMNS, as_json, as_rows, stops_on_signals
from tailrace.cli.terminal import LiveTable, Output, OutputOption, done, emit, log_to_stderr, table
from tailrace.config.file import load
from tailrace.errors import DeliveryError, TailraceError

if TYPE_CHECKING:
    from tailrace.admin.backfill import Extent, Request
    from tailrace.config import Pipeline


def backfill(
    file: Annotated[Path, typer.Argument(help="The pipeline's configuration, a YAML file.")],
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Begin with the first record at or after this time.")
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="End before the first record at this time.")],
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic to write to; it must exist.")],
    rejected: Annotated[
        str | None,
        typer.Option("--rejected", metavar="TOPIC", help="The topic of rejected records; by default one of its own."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept a range whose beginning may have been deleted.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the range, and change nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Read a range of the past again, and write its outputs to another topic, each once.

    The pipeline may run meanwhile. The same command continues an interrupted backfill; a finished one it leaves alone.
    """
    loaded = load(file)
    from tailrace.admin.backfill import Request, derived

    live = loaded.pipeline.pipeline
    request = Request(moment(since, "--from"), moment(until, "--to"), into, rejected, partial, live)
    pipeline = derived(loaded.pipeline, request, datetime.now(UTC))
    with told_apart(pipeline.pipeline, live, into):
        _deliver(pipeline, loaded.folder, request, output, dry_run=dry_run)


@contextlib.contextmanager
def told_apart(backfill: str, live: str, into: str) -> Iterator[None]:
    """Replace advice that, applied to the file at hand, would change the live pipeline: a command, or a setting."""
    try:
        yield
    except TailraceError as error:
        if isinstance(error, DeliveryError) and "tailrace " in error.then:
            then = (
                f"this is about {backfill!r}, and {live!r} is well: leave its offsets alone. Undo what was changed "
                "since the backfill began and repeat the command, or begin again with another topic: tailrace "
                "backfill --into TOPIC"
            )
        elif "source.on_data_loss" in error.then:
            then = (
                f"leave source.on_data_loss alone: {backfill!r} ignores it, and {live!r} would skip lost records. "
                "Repeat the command with --partial --into TOPIC, a topic that no backfill of this range has written "
                f"to: the records that are already in {into!r} come there, too"
            )
        else:
            raise
        raise type(error)(error.what, kept=error.kept, then=then) from error


def _deliver(pipeline: Pipeline, folder: Path, request: Request, output: Output, *, dry_run: bool) -> None:
    found = _extent(pipeline, request, begins=not dry_run)
    if dry_run or found.finished:
        if found.finished:
            from tailrace.kafka.cluster import Cluster

            Cluster(pipeline.kafka).require([str(pipeline.sink.topic)], "the topic that it has written to,")
        _report(pipeline, found, output, dry_run=dry_run, before=found.finished)
        return
    log_to_stderr()
    from tailrace.startup.run import run as drive

    stop = stops_on_signals()
    if output is Output.TEXT:
        with LiveTable(COLUMNS) as live:
            drive(pipeline, folder, batch=True, emit=as_rows(live), stop=stop)
    else:
        drive(pipeline, folder, batch=True, emit=as_json, stop=stop)
    found = _extent(pipeline, request, begins=False)
    _report(pipeline, found, output, dry_run=False, before=False)
    if not found.finished:  # by a signal: what follows in a script must not take the range for delivered
        raise typer.Exit(1)


def _extent(pipeline: Pipeline, request: Request, *, begins: bool) -> Extent:
    """Return the range; record it if this is the first start."""
    from tailrace.admin.backfill import begin, extent
    from tailrace.kafka.cluster import Cluster
    from tailrace.progress.ledger import Ledger

    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger:
        found = extent(pipeline, request, cluster, ledger)
        if begins and not found.begun:
            begin(pipeline, found, cluster, ledger)
            found = extent(pipeline, request, cluster, ledger)
        return found


def _report(pipeline: Pipeline, found: Extent, output: Output, *, dry_run: bool, before: bool) -> None:
    rows = [(*place, found.start.get(place, 0), end) for place, end in sorted(found.until.items())]
    columns = ("topic", "partition", "next", "until")
    if output is not Output.TEXT:
        emit(
            {
                "pipeline": pipeline.pipeline,
                "into": pipeline.sink.topic,
                "rejected": pipeline.rejected_topic,
                "begun": found.begun,
                "finished": found.finished,
                "left": found.offsets,
                "range": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
        return
    if found.finished:
        done(
            f"finished: {pipeline.pipeline} has delivered its range of {len(found.until)} partitions to "
            f"{pipeline.sink.topic}; rejected records are in {pipeline.rejected_topic}",
            f"nothing: it was finished before. If {pipeline.sink.topic} was emptied since, name another topic --into"
            if before
            else "",
        )
        return
    if dry_run:
        table(columns, rows)
    what = "dry run" if dry_run else "stopped"
    left = f"{found.offsets:,} offsets of {len(found.until)} partitions to read into {pipeline.sink.topic}"
    done(f"{what}: {pipeline.pipeline} has {left}", f"repeat it{' without --dry-run' if dry_run else ''}")
