"""`tailrace kafka`: a real Kafka in the foreground, to play with; it is there until Ctrl-C."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.terminal import Output, OutputOption, emit, note, say
from tailrace.errors import KafkaFailed

if TYPE_CHECKING:
    from tailrace.testing.embedded import EmbeddedKafka

USUAL_PORT = 9092  # where a configuration without `bootstrap.servers` looks
TOPIC = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,249})(:(?P<partitions>[1-9]\d{0,3}))?")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_EVERY = 0.5  # seconds


def kafka(
    port: Annotated[
        int, typer.Option("--port", "-p", min=1, max=65_535, help="The first broker's port; the others' follow it.")
    ] = USUAL_PORT,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=9, help="How many brokers.")] = 1,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep the data here, for the next time.", file_okay=False)
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Create a topic; may be repeated.", metavar="NAME[:PARTITIONS]"),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Start a real Kafka on this machine, and end it with Ctrl-C.

    Without --folder its data goes when it ends. With --output json one object says where it is, once it is ready.
    """
    wanted = topics(topic or ())
    from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

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
    """The topics that are asked for, with their partitions; one, if nothing else is said."""
    found: dict[str, int] = {}
    for text in given:
        match = TOPIC.fullmatch(text)
        if match is None or match["name"] in {".", ".."}:
            raise typer.BadParameter(
                f"{text!r} is not NAME or NAME:PARTITIONS; a name has letters, digits, dots, underscores and dashes,"
                " and there are 1 to 9999 partitions",
                param_hint="--topic",
            )
        if match["name"] in found:
            raise typer.BadParameter(f"{match['name']!r} is named twice", param_hint="--topic")
        found[match["name"]] = int(match["partitions"] or 1)
    return found


def create(bootstrap: str, wanted: Mapping[str, int]) -> dict[str, int]:
    """Create the topics that do not exist, and return how many partitions each has."""
    from tailrace.config import Kafka
    from tailrace.kafka.cluster import Cluster

    cluster = Cluster(Kafka(bootstrap_servers=bootstrap))
    return {name: cluster.ensure(name, partitions, -1, {}) for name, partitions in wanted.items()}


def watch(started: EmbeddedKafka) -> None:
    """Wait until the signal comes. A broker may be killed on purpose; when none is left, that is an error."""
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
    """Where it is, what is in it, and what to try next."""
    address = started.bootstrap_servers
    say(f"Kafka is ready at {address}")
    for name, partitions in have.items():
        asked = "" if partitions == wanted[name] else f"; it was there before, {wanted[name]} were asked for"
        say(f"topic {name}: {_count(partitions, 'partition')}{asked}")
    note(f"data and logs are in {started.folder}{'' if started.options.folder else ', until it ends'}")
    note(f"next: tailrace doctor -b {address}, in another terminal")
    if any(broker.port == USUAL_PORT for broker in started.brokers):
        note("next: tailrace run FILE, whose configuration need not name the brokers")
    else:
        note(f"next: tailrace run FILE, with `kafka: {{bootstrap.servers: '{address}'}}` in it")
    note("Ctrl-C ends it")


def as_json(started: EmbeddedKafka, have: Mapping[str, int]) -> dict[str, object]:
    """The same for a program."""
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
    # One is enough: a second must not disturb the tidying up.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
