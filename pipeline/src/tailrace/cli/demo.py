"""`tailrace demo`: its own Kafka, a pipeline, optional kills, and the proof. This file only draws."""

from __future__ import annotations

import random
import signal
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.terminal import LiveTable, Output, OutputOption, emit, fail, note, say
from tailrace.config import units
from tailrace.errors import RecordsDiffer

if TYPE_CHECKING:
    from tailrace.demo.batches import Row
    from tailrace.demo.supervisor import Result

COLUMNS = ("batch", "in", "out", "rejected", "lag", "commit ms")
EXAMPLES = ("tweets", "windowed-counts")


def seconds(text: str) -> float:
    """Parse `30`, `30s` or `2m` into seconds."""
    found = units.seconds(text)
    if not found:
        raise typer.BadParameter(f"{text!r} is not a duration; write 30s or 2m")
    return found


class Picture:
    """The live table, with the demo's messages between its rows."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table

    def says(self, text: str) -> None:
        """Show a line between the rows."""
        self._table.note(text)

    def wrote(self, row: Row) -> None:
        """Add a row."""
        self._table.row(row.batch, row.read, row.written, row.rejected, row.lag, row.commit_ms)


def demo(
    length: Annotated[str, typer.Option("--for", help="How long to write records, such as 30s or 2m.")] = "30s",
    rate: Annotated[float, typer.Option("--rate", min=1, max=1_000_000, help="Records per second.")] = 1000,
    kills: Annotated[int, typer.Option("--kills", min=0, help="Times to kill the driver (kill -9) mid-batch.")] = 0,
    sink: Annotated[str, typer.Option("--sink", help="Sink to use: tailrace or spark.")] = "tailrace",
    output: OutputOption = Output.TEXT,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with all logs and data.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Repeat the records and kills of an earlier run.")] = None,
    example: Annotated[
        str, typer.Option("--example", help="Pipeline to run: tweets, or windowed-counts, which keeps state.")
    ] = "tweets",
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="PLACE", help="Where windowed-counts keeps its state: file:/… or s3a://…"),
    ] = None,
) -> None:
    """Show exactly-once delivery on a real Kafka, and prove it by reading everything back."""
    from tailrace.demo.supervisor import DemoOptions, SinkKind, Supervisor

    if sink not in set(SinkKind):
        raise typer.BadParameter(f"{sink!r} is not a sink; choose {' or '.join(SinkKind)}", param_hint="--sink")
    if example not in EXAMPLES:
        raise typer.BadParameter(
            f"{example!r} is not an example; choose {' or '.join(EXAMPLES)}", param_hint="--example"
        )
    stateful = example == "windowed-counts"
    if stateful and sink == SinkKind.SPARK:
        raise typer.BadParameter("windowed-counts runs with Tailrace's sink only", param_hint="--sink")
    if checkpoint is not None and not stateful:
        raise typer.BadParameter("tweets keeps no state; add --example windowed-counts", param_hint="--checkpoint")
    if checkpoint is not None and not checkpoint.startswith(("file:/", "s3a://")):
        raise typer.BadParameter(f"{checkpoint!r} is neither file:/… nor s3a://…", param_hint="--checkpoint")
    chosen = DemoOptions(
        seconds=seconds(length),
        rate=rate,
        kills=kills,
        sink=SinkKind(sink),
        keep=keep,
        seed=random.randrange(1_000_000) if seed is None else seed,
        example=example,
        checkpoint=checkpoint,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with LiveTable(COLUMNS) as table:
            result = Supervisor(chosen, Picture(table)).run()
    except KeyboardInterrupt:
        note("interrupted; all processes of the demo have ended")
        raise typer.Exit(128 + signal.SIGINT) from None
    show(result, output)


def show(result: Result, output: Output) -> None:
    """Show the result; exit with code 1 if the proof failed."""
    verdict = result.verdict
    if result.kills and result.sink == "tailrace":
        note(
            f"{result.kills} kills mid-batch; {result.skipped} times a sink partition skipped its part of a batch,"
            " already delivered"
        )
    if result.folder is not None:
        note(f"logs and data are in {result.folder}")
    if result.checkpoint is not None and result.checkpoint_stays:
        note(f"the state stays in {result.checkpoint}")
    note(f"{result.batches} batches, {result.seconds} s in total, seed {result.seed}")
    note(f"next: {hint(result)}")
    if not verdict.holds:
        fail(
            RecordsDiffer("; ".join(verdict.wrong), then="tailrace demo --keep, which keeps the topics and logs"),
            Output.TEXT,
        )
    if output is Output.JSON:
        emit(as_json(result))
    else:
        say(verdict.line() + remark(result))
    if not verdict.holds:
        raise typer.Exit(RecordsDiffer.exit_code)


def as_json(result: Result) -> dict[str, object]:
    """Return the result as one JSON object."""
    verdict = result.verdict
    return {
        "in": verdict.read,
        "out": verdict.written,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "rejected": verdict.rejected,
        "kills": result.kills,
        "unexpected": verdict.unexpected,
        "batches": result.batches,
        "skipped": result.skipped,
        "seconds": result.seconds,
        "sink": str(result.sink),
        "checkpoint": result.checkpoint,
        "seed": result.seed,
    }


def hint(result: Result) -> str:
    """Return the command to try next."""
    if result.sink == "spark":
        return f"tailrace demo --kills {result.kills or 3}"
    if result.checkpoint is not None:
        return f"tailrace demo --example windowed-counts --kills {result.kills or 3}"
    if result.kills:
        return f"tailrace demo --kills {result.kills} --sink spark, the same with Spark's own sink"
    return "tailrace demo --kills 3, the same with the driver killed three times"


def remark(result: Result) -> str:
    """Explain duplicates of Spark's own sink on the closing line."""
    if result.sink == "spark" and result.verdict.duplicated:
        return "; Spark's own sink is at-least-once, and leaves duplicates when it is killed"
    return ""


def _interrupt(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleanup.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
