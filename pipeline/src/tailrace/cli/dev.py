"""`tailrace dev`: a pipeline beside its editor, on a Kafka of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.terminal import Output, fail, log_to_stderr, note, say
from tailrace.config.file import load
from tailrace.errors import TailraceError
from tailrace.signals import on_signals
from tailrace.status.event_lines import line
from tailrace.status.events import BatchWritten, Event


def dev(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The pipeline's configuration.")] = Path(
        "pipeline.yaml"
    ),
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=10_000, help="Samples a second.")] = 10.0,
) -> None:
    """Run a pipeline on a Kafka of its own, and again whenever a file of its folder changes, until Ctrl-C.

    If there is a samples.py beside FILE, the records that its function `records` yields are written to the source.
    """
    if not file.is_file():
        load(file)  # says what is wrong
    log_to_stderr()
    note("starting Kafka")
    from tailrace.demo.development import Development  # imports Spark, which --help should not wait for
    from tailrace.startup.run import run
    from tailrace.testing.embedded import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        session = Development(file.resolve(), kafka.bootstrap_servers, run, say, _fail, rate)

        on_signals(session.end)
        note(f"Kafka is at {kafka.bootstrap_servers}; Ctrl-C ends it")
        session.serve(_told)
    note("ended; the data of this Kafka is removed")


def _fail(error: TailraceError) -> None:
    fail(error, Output.TEXT)


def _told(event: Event) -> None:
    if isinstance(event, BatchWritten):
        if event.read:
            note(f"batch {event.batch}: {event.read} in, {event.out} out, {event.rejected} rejected, {event.seconds} s")
    elif (text := line(event)) is not None:
        note(text)
