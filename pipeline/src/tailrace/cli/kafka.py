"""`tailrace kafka`: a real Kafka in the foreground, to try things with, until Ctrl-C; and records of any Kafka."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli import kafka_records, kafka_topic
from tailrace.cli.terminal import Output, OutputOption, emit, note, say
from tailrace.errors import ExtraMissing, KafkaFailed

if TYPE_CHECKING:
    from tailrace.testing.embedded import EmbeddedKafka

USUAL_PORT = 9092  # the default of `bootstrap.servers`
TOPIC = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,249})(:(?P<partitions>[1-9]\d{0,3}))?")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_EVERY = 0.5  # seconds

app = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
app.add_typer(kafka_topic.app, name="topic")
app.command()(kafka_records.produce)
app.command()(kafka_records.consume)


@app.callback()
def kafka(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=1, max=65_535, help="Port of the first broker; the others use the next ones."),
    ] = USUAL_PORT,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=9, help="Number of brokers.")] = 1,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep the data here for the next run.", file_okay=False)
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Create a topic; may be repeated.", metavar="NAME[:PARTITIONS]"),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Run a real Kafka on this machine until Ctrl-C. The commands work on any Kafka, and start none.

    Without --folder its data is removed at the end. With --output json its address is printed once it is ready.
    """
    if context.invoked_subcommand is not None:
        return
    wanted = topics(topic or ())
    try:
        from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions
    except ImportError as error:  # the driver's image has the commands only
        raise ExtraMissing.of("testing", "a Kafka of one's own", error) from error

    options = EmbeddedOptions(brokers=brokers, folder=folder, port=port)
    for number in SIGNALS:
        signal.signal(number, _end)
    ready = False
    try:
        if output is Output.TEXT:
            note(f"starting {_count(brokers, 'broker')} on port {port}")
        with EmbeddedKafka(options) as started:
            have = create(started.bootstrap_servers, wanted)
            ready = True
            if output is Output.JSON:
                emit(as_json(started, have))
            else:
                show(started, have, wanted)
            watch(started)
    except KeyboardInterrupt:
        if not ready:
            raise
        if output is Output.TEXT:
            note(f"ended; the data is in {folder}" if folder else "ended; the data is removed")


def topics(given: Iterable[str]) -> dict[str, int]:
    """Parse the requested topics and their partition counts, 1 by default."""
    found: dict[str, int] = {}
    for text in given:
        match = TOPIC.fullmatch(text)
        if match is None or match["name"] in {".", ".."}:
            raise typer.BadParameter(
                f"{text!r} is not NAME or NAME:PARTITIONS; a name has letters, digits, dots, underscores and dashes,"
                " and a topic has 1 to 9999 partitions",
                param_hint="--topic",
            )
        if match["name"] in found:
            raise typer.BadParameter(f"{match['name']!r} is named twice", param_hint="--topic")
        found[match["name"]] = int(match["partitions"] or 1)
    return found


def create(bootstrap: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Create the missing topics, and return each topic's partition count."""
    from tailrace.config import Kafka
    from tailrace.kafka.cluster import Cluster

    cluster = Cluster(Kafka(bootstrap_servers=bootstrap))
    return {name: cluster.ensure(name, partitions, -1, {}) for name, partitions in wanted.items()}


def watch(started: EmbeddedKafka) -> None:
    """Wait for a signal. A broker may be killed on purpose; raise KafkaFailed once none is left."""
    missed: set[int] = set()
    while True:
        time.sleep(LOOK_EVERY)
        gone = {broker.node_id for broker in started.brokers if not broker.alive}
        for broker in started.brokers:
            if broker.node_id in gone - missed:
                note(f"broker {broker.node_id} on port {broker.port} has ended; its log is {broker.log}")
        missed = gone
        if len(gone) == len(started.brokers):
            last = started.brokers[-1]
            raise KafkaFailed(
                f"no broker is left; the log of broker {last.node_id} ended with\n{last.last_lines()}",
                kept=f"the data in {started.folder}" if started.options.folder else "",
                then="tailrace kafka",
            )


def show(started: EmbeddedKafka, have: Mapping[str, int], wanted: Mapping[str, int]) -> None:
    """Print its address, its topics and what to try next."""
    address = started.bootstrap_servers
    say(f"Kafka is ready at {address}")
    for name, partitions in have.items():
        asked = "" if partitions == wanted[name] else f"; it existed already, {wanted[name]} were requested"
        say(f"topic {name}: {_count(partitions, 'partition')}{asked}")
    note(f"data and logs are in {started.folder}{'' if started.options.folder else ', removed at the end'}")
    note(f"next: tailrace doctor -b {address}, in another terminal")
    topic = next(iter(have), "NAME")
    if topic not in have:
        note(f"next: tailrace kafka topic create {topic} -b {address}")
    note(f"next: tailrace kafka produce {topic} -b {address}, or consume: write lines as records, or show some")
    if any(broker.port == USUAL_PORT for broker in started.brokers):
        note("next: tailrace run FILE; its configuration does not have to name the brokers")
    else:
        note(f"next: tailrace run FILE, with `kafka: {{bootstrap.servers: '{address}'}}` in it")
    note("Ctrl-C ends it")


def as_json(started: EmbeddedKafka, have: Mapping[str, int]) -> dict[str, object]:
    """Return the same for a program."""
    return {
        "bootstrap_servers": started.bootstrap_servers,
        "brokers": [
            {"id": broker.node_id, "port": broker.port, "pid": broker.pid, "log": str(broker.log)}
            for broker in started.brokers
        ],
        "folder": str(started.folder),
        "kept": started.options.folder is not None,
        "topics": dict(have),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _end(number: int, frame: FrameType | None) -> None:
    # A second signal must not interrupt the cleanup.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
