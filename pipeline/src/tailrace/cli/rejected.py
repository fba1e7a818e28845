"""`tailrace rejected`: inspect a pipeline's rejected records, and send them back once the cause is fixed."""

from __future__ import annotations

import heapq
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.admin import copies
from tailrace.admin.rejected import Target, content, described, readable, reason, split, when
from tailrace.admin.replay import Replay
from tailrace.admin.selection import Selection, select
from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.terminal import Output, OutputOption, cell, confirm, done, emit, interactive, note, say, table
from tailrace.config.file import load
from tailrace.errors import OptionRefused
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.reader import Message, read_one

app = typer.Typer(
    help="List, show and replay a pipeline's rejected records.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_NOTHING_DONE = "nothing was read or written"

FileArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The pipeline's configuration.")]
MixedArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE] [PARTITION:OFFSET]...", help="The pipeline's configuration; records."),
]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="The rejected topic, instead of a FILE.")]


def _target(
    file: Path | None, topic: str | None, bootstrap: str | None, properties: Path | None, option: list[str] | None
) -> Target:
    if (file is None) == (topic is None):
        raise OptionRefused(
            "name either the pipeline's FILE, or its rejected topic with --topic",
            kept=_NOTHING_DONE,
            then="tailrace rejected list pipeline.yaml, or: tailrace rejected list -t NAME.rejected -b HOST:PORT",
        )
    if file is None:
        return Target(connection(bootstrap, properties, option), topic or "", None)
    pipeline = load(file).pipeline
    kafka = connection(bootstrap, properties, option, pipeline.kafka)
    return Target(kafka, pipeline.rejected_topic, pipeline.pipeline)


@app.command("list")
def list_(
    file: FileArgument = None,
    topic: TopicOption = None,
    bootstrap: BootstrapOption = None,
    reason_: Annotated[str | None, typer.Option("--reason", help="Only records with this reason.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Show at most this many, the newest.")] = 50,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List rejected records, the newest last, and count them by reason."""
    target = _target(file, topic, bootstrap, properties, option)
    counts: Counter[str] = Counter()
    others: Counter[str] = Counter()
    newest: list[tuple[str, int, int, dict[str, Any]]] = []  # a heap: partitions come in any order
    for message in target.records():
        if reason_ is None or reason(message) == reason_:
            counts[reason(message)] += 1
            if limit:
                push = heapq.heappush if len(newest) < limit else heapq.heappushpop
                push(newest, (when(message), message.partition, message.offset, described(message)))
        else:
            others[reason(message)] += 1
    shown = [each for *_, each in sorted(newest)]
    if output is Output.JSON:
        emit({"topic": target.topic, "total": counts.total(), "reasons": counts, "records": shown})
        return
    if shown:
        columns = ("record", "when", "reason", "detail", "source")
        table(columns, [_row(each) for each in shown])
    by_reason = _by_reason(counts)
    if not counts and others:
        by_reason = f"none has the reason {reason_!r}, there are {_by_reason(others)}"
    cut = f"; the newest {len(shown)} are shown" if len(shown) < counts.total() else ""
    done(
        f"rejected: {counts.total()} records in {target.topic}" + (f": {by_reason}" if by_reason else "") + cut,
        f"tailrace rejected show {file or f'-t {target.topic}'} PARTITION:OFFSET" if shown else "",
    )


def _by_reason(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    source = record["source"]
    place = f"{source['topic']} {source['partition']}:{source['offset']}" if source["topic"] else ""
    return (
        f"{record['partition']}:{record['offset']}",
        record["at"],
        record["reason"] or "",
        record["detail"] or "",
        place,
    )


@app.command()
def show(
    what: MixedArgument = None,
    topic: TopicOption = None,
    bootstrap: BootstrapOption = None,
    size: Annotated[int, typer.Option("--bytes", min=1, help="Maximum bytes of key and value to show.")] = 4096,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show rejected records with headers, key and value, as text or hex dump."""
    file, places = split(what)
    target = _target(file, topic, bootstrap, properties, option)
    if not places:
        raise _no_record("no record was named", target)
    for place in places:
        message = read_one(target.kafka, target.topic, place.partition, place.offset)
        if message is None:
            raise _no_record(f"there is no record at {place} of {target.topic}", target)
        if output is Output.JSON:
            emit({**described(message), **content(message, size)})
            continue
        say(f"{message.topic} {message.partition}:{message.offset}, {when(message)}")
        for name, value in message.headers:
            say(f"  {cell(name)}: {readable(value, size)}")
        say(f"key: {readable(message.key, size)}")
        say(f"value: {readable(message.value, size)}")


def _no_record(what: str, target: Target) -> OptionRefused:
    return OptionRefused(
        what, kept=_NOTHING_DONE, then=f"`tailrace rejected list -t {target.topic}` shows records as PARTITION:OFFSET"
    )


@app.command()
def replay(
    what: MixedArgument = None,
    topic: TopicOption = None,
    bootstrap: BootstrapOption = None,
    reason_: Annotated[str | None, typer.Option("--reason", help="Replay the records with this reason.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Replay every record not replayed yet.")] = False,
    to: Annotated[
        str | None, typer.Option("--to", help="Send to this topic, not the source topic. They count as replayed.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Send rejected source records back to their topic, each exactly once.

    They keep their own key, value and headers. The transaction that sends them also marks them as replayed, so a
    repeated replay sends no record twice, and completes one that was interrupted. A replay of more than 30 s has
    several transactions. The marks are offsets of the group tailrace.NAME.replay, and last as long as the broker keeps
    them (offsets.retention.minutes). A record is sent once, to whatever topic: what --to has sent elsewhere does not go
    to its source topic afterwards.

    Rows that were rejected at the stage encode or sink are outputs, not source records: they are sent only with --to.
    To deliver them, correct what rejects them and read their source records again, for example with tailrace backfill.
    """
    file, places = split(what)
    target = _target(file, topic, bootstrap, properties, option)
    if sum((bool(places), reason_ is not None, all_)) != 1:
        raise OptionRefused(
            "name what to replay: either records as PARTITION:OFFSET, or --reason REASON, or --all",
            kept="nothing was sent",
            then="`tailrace rejected list` shows the records",
        )
    if not yes and not interactive():
        raise OptionRefused(
            "a replay needs confirmation, and there is no terminal to ask on",
            kept="nothing was sent",
            then="add --yes",
        )

    def wanted(message: Message) -> bool:
        if places:
            return (message.partition, message.offset) in places
        return reason_ is None or reason(message) == reason_

    cluster = Cluster(target.kafka)
    partitions = cluster.require([target.topic], "topic")[target.topic]
    found = select(target.records(), wanted, to)
    for place in places:
        if place not in found.wanted and place not in found.homeless:
            raise _no_record(f"there is no record at {place} of {target.topic}", target)
    if not found.wanted:
        _replayed(found, 0, output, target, file)
        return
    if to is None:
        copies.refuse(target.kafka, {target.pipeline} if target.pipeline else found.pipelines)
    known = cluster.require(found.topics, "topic")
    with Replay(target.kafka, target.pipeline or found.pipeline(), target.topic, partitions) as sending:
        marks = sending.marks()
        new = found.without(marks)
        question = f"replay {len(new.wanted)} records of {target.topic} to {', '.join(sorted(new.topics))}?"
        if to is not None:
            question += " They will not go to their source topics afterwards."
        if new.wanted and not yes and not confirm(question):
            note("nothing was sent")
            raise typer.Exit(1)
        if new.wanted:
            # All of them: while records of other pipelines are read, a transaction is open, too.
            sending.send(new.outgoing(target.every(), known), new, marks)
    _replayed(new, len(found.wanted) - len(new.wanted), output, target, file)


def _replayed(sent: Selection, before: int, output: Output, target: Target, file: Path | None) -> None:
    counts = Counter(each.topic for each in sent.wanted.values())
    outputs = sum(sent.homeless.values())
    unnamed = len(sent.homeless) - outputs
    if output is Output.JSON:
        left = {"without_source": unnamed, "outputs": outputs}
        emit({"replayed": counts.total(), "to": counts, "before": before, **left})
        return
    where = f" to {', '.join(f'{topic} ({count})' for topic, count in counts.items())}" if counts else ""
    line = f"replayed: {counts.total()} records of {target.topic}{where}"
    if before:
        line += f"; {before} were replayed before"
    if unnamed:
        line += f"; {unnamed} do not name their source, and need --to TOPIC"
    if outputs:
        line += f"; {outputs} are outputs, which the source topic does not take: correct what rejects them"
        line += f", then read their source records again, for example with tailrace backfill {file or 'FILE'}"
        line += "; --to TOPIC sends them elsewhere"
    done(line)
