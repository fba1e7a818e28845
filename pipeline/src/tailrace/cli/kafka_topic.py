"""`tailrace kafka topic create`: topics on a Kafka that runs, for its first records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.terminal import Output, OutputOption, done, emit, say
from tailrace.config.file import load
from tailrace.errors import OptionRefused

app = typer.Typer(help="Create topics.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def _topic() -> None:
    """Create topics."""


@app.command()
def create(
    what: Annotated[
        list[str], typer.Argument(metavar="[FILE] [NAME[:PARTITIONS]]...", help="A pipeline's configuration; topics.")
    ],
    replication: Annotated[
        int, typer.Option("--replication", min=-1, help="Copies of each partition; -1 is the broker's default.")
    ] = -1,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create topics, with 1 partition unless said otherwise; existing topics stay as they are.

    Without names, the topics that FILE reads and writes are created.
    """
    from tailrace.cli.kafka import topics
    from tailrace.kafka.cluster import Cluster

    files = [each for each in what if each.endswith((".yaml", ".yml"))]
    if len(files) > 1:
        raise OptionRefused(
            f"{files[1]!r} is a second FILE", kept="nothing was created", then="pass one FILE, and the topics' names"
        )
    pipeline = load(Path(files[0])).pipeline if files else None
    wanted = topics(each for each in what if each not in files)
    if pipeline is not None and not wanted:
        wanted = dict.fromkeys([*pipeline.source.topics, *pipeline.sink.named], 1)
    if not wanted:
        raise OptionRefused(
            "no topic is named", kept="nothing was created", then="tailrace kafka topic create orders:4"
        )
    cluster = Cluster(connection(bootstrap, properties, option, pipeline.kafka if pipeline is not None else None))
    before = cluster.topics()
    made = {name: cluster.ensure(name, count, replication, {}) for name, count in wanted.items()}
    if output is Output.JSON:
        emit({"topics": [{"name": name, "partitions": made[name], "created": name not in before} for name in made]})
        return
    for name, count in made.items():
        existed = "; it existed already" if name in before else ""
        say(f"topic {name}: {count} partition{'' if count == 1 else 's'}{existed}")
    where = files[0] if files else f"-b {bootstrap}" if bootstrap is not None else ""
    done(
        f"created: {len(made.keys() - before.keys())} of {len(made)} topics",
        " ".join(filter(None, ["tailrace kafka produce", where, next(iter(made))])),
    )
