"""`tailrace shadow`: a changed pipeline next to the live one, on the same input, and how their outputs differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.terminal import Output, OutputOption, done, emit, note, table
from tailrace.config.file import load
from tailrace.errors import OptionRefused

if TYPE_CHECKING:
    from tailrace.admin.difference import Difference

app = typer.Typer(
    help="Compare a changed pipeline with the live one, on the same input.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[Path, typer.Argument(help="The shadow's configuration: its own name and its own sink topic.")]
LiveOption = Annotated[str, typer.Option("--live", metavar="NAME", help="The name of the live pipeline.")]
SinkOption = Annotated[str, typer.Option("--sink", metavar="TOPIC", help="The live pipeline's sink topic.")]
LimitOption = Annotated[
    float, typer.Option("--limit", min=1, help="Seconds to wait for a pipeline to deliver the range.")
]


@app.command()
def begin(
    file: FileArgument,
    live: LiveOption,
    sink: SinkOption,
    limit: LimitOption = 60.0,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Begin although the pipeline may not have been a shadow: its offsets are given up."
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Let the shadow read from where the live pipeline is now; create its sink topic if it is missing.

    The live pipeline goes on, and is not changed. Repeated, this gives up what the shadow has done and begins again.
    """
    loaded = load(file)
    from tailrace.admin.shadow import Live
    from tailrace.admin.shadow import begin as start
    from tailrace.kafka.cluster import Cluster
    from tailrace.progress.ledger import Ledger
    from tailrace.progress.stores import open_store

    pipeline = loaded.pipeline
    store = open_store(pipeline, loaded.folder)
    try:
        with Ledger.of(pipeline) as ledger:
            found = start(pipeline, Live(live, sink), Cluster(pipeline.kafka), ledger, store, limit, again=again)
    finally:
        store.close()
    rows = [(*place, offset) for place, offset in sorted(found.items())]
    columns = ("topic", "partition", "next")
    if output is Output.JSON:
        offsets = [dict(zip(columns, row, strict=True)) for row in rows]
        emit({"pipeline": pipeline.pipeline, "live": live, "into": pipeline.sink.topic, "offsets": offsets})
        return
    table(columns, rows)
    done(f"{pipeline.pipeline} reads from here into {pipeline.sink.topic}", f"tailrace run {file}")


@app.command()
def diff(
    file: FileArgument,
    live: LiveOption,
    sink: SinkOption,
    limit: LimitOption = 60.0,
    most: Annotated[
        int, typer.Option("--most", min=1, help="Refuse to compare more offsets; they are kept on disk meanwhile.")
    ] = 1_000_000,
    counts_file: Annotated[
        Path | None, typer.Option("--counts-file", help="Write the counts to this file, too, as JSON: for a Job.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare the outputs of all inputs that both pipelines have delivered since the shadow began.

    Records are matched by key and value, then by key. Both pipelines may run meanwhile.
    """
    loaded = load(file)
    from tailrace.admin.shadow import Live, difference
    from tailrace.kafka.cluster import Cluster
    from tailrace.progress.ledger import Ledger

    pipeline = loaded.pipeline
    if output is Output.TEXT:
        note(f"comparing {pipeline.sink.topic} with {sink}")
    with Ledger.of(pipeline) as ledger:
        found = difference(pipeline, Live(live, sink), Cluster(pipeline.kafka), ledger, limit=limit, most=most)
    _report(found, output)
    if counts_file is not None:
        counts = {name: value for name, value in found.as_dict().items() if name != "samples"}
        try:
            counts_file.write_text(json.dumps(counts), encoding="utf-8")
        except OSError as error:
            raise OptionRefused(
                f"{counts_file} cannot be written: {error}",
                kept="nothing was changed; the comparison is printed",
                then="name another file",
            ) from error


def _report(found: Difference, output: Output) -> None:
    """Write the counts and samples; outputs that differ are a result, not a failure."""
    if output is Output.JSON:
        emit(found.as_dict())
        return
    if found.samples:
        table(("in", "key", "live", "shadow"), [(*each.as_dict().values(),) for each in found.samples])
    done(f"compared {found.live:,} live and {found.shadow:,} shadow records: {found}")
