"""`tailrace run`: run a pipeline until it is told to stop."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from tailrace.cli.ready import ReadyFile
from tailrace.cli.renewal import Renewal, certificates
from tailrace.cli.terminal import LiveTable, Output, log_to_stderr
from tailrace.config.file import load


def run(
    file: Annotated[Path, typer.Argument(help="The pipeline's configuration, a YAML file.")],
    batch: Annotated[bool, typer.Option("--batch", help="Read what is there now, then end.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Make ready beside the driver that runs, and take over when it has gone.")
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", help="A file that is there while the driver runs, or stands by and is ready."),
    ] = None,
    until_renewed: Annotated[
        bool,
        typer.Option(
            "--until-renewed", help="Leave when a certificate of kafka.options was renewed; something starts it anew."
        ),
    ] = False,
    output: Annotated[Output, typer.Option("--output", help="text, or json: one object for each event.")] = Output.TEXT,
) -> None:
    """Run a pipeline. Ctrl-C or SIGTERM finishes the batch that is under way, and leaves.

    A second signal gives the batch up; the next start finishes it.
    """
    if batch and standby:
        raise typer.BadParameter("--standby waits for its turn to go on for ever; --batch ends", param_hint="--standby")
    loaded = load(file)
    ready = ReadyFile(ready_file)
    log_to_stderr()
    from tailrace.startup.run import Stop  # brings Spark, which --help should not wait for
    from tailrace.startup.run import run as drive

    stop = Stop()

    def told(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not stop.event.is_set():
            stop(f"{name} was received")
            return
        stop.hurry(f"{name} was received twice")
        signal.signal(number, signal.SIG_DFL)  # a third one ends the process, if even that is stuck

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    with ready, Renewal(certificates(loaded.pipeline) if until_renewed else (), stop):
        if output is Output.JSON:
            drive(loaded.pipeline, loaded.folder, batch=batch, standby=standby, emit=ready.after(_as_json), stop=stop)
            return
        with LiveTable(("batch", "in", "limit", "out", "rejected", "skipped", "seconds", "commit ms", "lag")) as table:
            emit = ready.after(_as_rows(table))
            drive(loaded.pipeline, loaded.folder, batch=batch, standby=standby, emit=emit, stop=stop)


def _as_json(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def _as_rows(table: LiveTable) -> Any:
    def emit(event: dict[str, Any]) -> None:
        match event["event"]:
            case "written":
                table.row(
                    *(
                        event.get(name)  # a batch of an earlier run has no limit
                        for name in (
                            "batch",
                            "in",
                            "limit",
                            "out",
                            "rejected",
                            "skipped",
                            "seconds",
                            "commit_ms",
                            "lag",
                        )
                    )
                )
            case "starting":
                table.note(f"pipeline {event['pipeline']}: starting Spark")
            case "away":
                table.note(f"the brokers do not answer; what was delivered is safe, waiting for them: {event['what']}")
            case "back":
                table.note("the brokers answer again")
            case "started":
                table.note(f"pipeline {event['pipeline']}: going on with batch {event['batch']}")
            case "warning":
                table.note(f"warning: {event['what']}")
            case "serving":
                table.note(f"status page: {event['url']}")
            case "reset":
                table.note(f"offsets out of range: {event['what']}")
            case "offsets" | "note":
                table.note(event["what"])
            case "idle":
                table.note(f"batch {event['batch']}: drained, waiting for records")
            case "standby":
                table.note(_standby(event))
            case "lease":
                table.note(f"no standby can see this driver: {event['what']}")
            case "stopped" if event["batch"] is None:
                table.note(f"stopped: {event['reason']}; it had not taken over")
            case "stopped":
                table.note(f"stopped: {event['reason']}; the last batch was {event['batch']}")

    return emit


def _standby(event: dict[str, Any]) -> str:
    leader = event["leader"]
    who = f"run {leader['run']} on {leader['host']} leads" if leader else "nobody leads"
    cold = "".join(f"; not warm: {each}" for each in event["cold"])
    return f"standby: ready, {who}{cold}"
