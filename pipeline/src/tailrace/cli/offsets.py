"""`tailrace offsets`: where a pipeline continues reading, and how to change that while it is stopped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.offset_words import UNCHANGED, assignment, moment, unchanged
from tailrace.cli.terminal import Output, OutputOption, confirm, done, emit, interactive, note, say, table
from tailrace.config import Pipeline, Reset
from tailrace.config.file import load
from tailrace.errors import ConfigInvalid, OffsetStoreUnusable, OptionRefused

if TYPE_CHECKING:
    from tailrace.admin.offsets import Situation
    from tailrace.kafka.cluster import Cluster
    from tailrace.progress.ledger import Ledger
    from tailrace.progress.positions import Place, Positions
    from tailrace.progress.stores import OffsetStore

app = typer.Typer(
    help="Show and change where a pipeline continues reading.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[Path, typer.Argument(help="The pipeline's configuration.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
GiveUpOption = Annotated[
    bool,
    typer.Option(
        "--give-up",
        help="Abandon an unfinished batch, or continue although the plan is lost. Depending on the new offsets, "
        "records of that batch may come out twice or never.",
    ),
]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")]


@dataclass(frozen=True)
class Desk:
    """A command's context: the pipeline, its cluster, ledger and store, and their state now."""

    file: Path
    pipeline: Pipeline
    cluster: Cluster
    ledger: Ledger
    store: OffsetStore
    now: Situation


@dataclass(frozen=True)
class How:
    """A change's options other than the offsets."""

    dry_run: bool
    yes: bool
    give_up: bool
    output: Output


@contextlib.contextmanager
def _desk(file: Path) -> Iterator[Desk]:
    loaded = load(file)
    from tailrace.admin.offsets import look
    from tailrace.kafka.cluster import Cluster
    from tailrace.progress.ledger import Ledger
    from tailrace.progress.stores import open_store

    pipeline = loaded.pipeline
    cluster = Cluster(pipeline.kafka)
    store = open_store(pipeline, loaded.folder)
    with contextlib.closing(store), Ledger.of(pipeline) as ledger:
        yield Desk(file, pipeline, cluster, ledger, store, look(pipeline, cluster, ledger, store))


@app.command()
def show(file: FileArgument, output: OutputOption = Output.TEXT) -> None:
    """Show where the pipeline continues, what the store says and what the topic holds, per topic partition.

    This works while the pipeline runs, too: shown is the end of the last planned batch; of an open one, its begin too.
    """
    with _desk(file) as desk:
        from tailrace.kafka import source

        now, cluster = desk.now, desk.cluster
        present = source.partitions_of(desk.pipeline, cluster)
        first, last = cluster.earliest(present), source.ends(desk.pipeline, present, cluster)
        rows, waiting = [], 0
        for place in sorted({*present, *now.positions, *now.stored}):
            at, end = now.positions.get(place), last.get(place)
            lag = max(0, end - at) if at is not None and end is not None else None
            begun = [now.begins.get(place)] * (now.state == "open")
            rows.append((*place, *begun, at, now.stored.get(place), first.get(place), end, lag))
            waiting += lag or 0
    columns = ("topic", "partition", *["begins"] * (now.state == "open"), "next", "stored", "earliest", "latest", "lag")
    if output is Output.JSON:
        emit(
            {
                "pipeline": desk.pipeline.pipeline,
                "state": now.state,
                "store": desk.store.where,
                "next_batch": now.next_batch,
                "offsets": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
        return
    table(columns, rows)
    counts = f"{len(rows)} partitions, {waiting:,} records behind"
    done(f"{desk.pipeline.pipeline}: {now.state}, {counts}; {desk.store.where}", _after(desk))


def _after(desk: Desk) -> str:
    if desk.now.state == "lost":
        return "tailrace explain TR-306"
    if desk.now.state == "open":
        note(f"batch {desk.now.next_batch - 1} is open, from `begins` to `next`; the next start finishes it first")
        return f"tailrace run {desk.file} --batch"
    return f"tailrace run {desk.file}" if desk.now.state != "running" else ""


@app.command("set")
def set_(
    file: FileArgument,
    places: Annotated[list[str], typer.Argument(metavar="TOPIC:PARTITION=OFFSET...", help="The new offsets.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    give_up: GiveUpOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Set the offset of single topic partitions; the others stay where they are."""
    wanted = dict(map(assignment, places))
    _change(file, How(dry_run, yes, give_up, output), lambda desk, before: wanted)


@app.command()
def reset(
    file: FileArgument,
    to: Annotated[
        Reset | None, typer.Option("--to", help="earliest or latest; the default is auto.offset.reset.")
    ] = None,
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    give_up: GiveUpOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Go to the beginning or the end of the source topics."""

    def wanted(desk: Desk, before: Positions) -> Positions:
        from tailrace.admin.targets import ends_of

        earliest = (to or desk.pipeline.source.auto_offset_reset) is Reset.EARLIEST
        read = {place: min(at, before.get(place, at)) for place, at in desk.now.read.items()}
        return ends_of(desk.pipeline, desk.cluster, _places(desk, topic, before), read, earliest)

    _change(file, How(dry_run, yes, give_up, output), wanted, alone=topic is None)


@app.command()
def rewind(
    file: FileArgument,
    to_time: Annotated[
        str, typer.Option("--to-time", metavar="TIME", help="Such as 2026-11-20T10:00:00Z; UTC if no zone is given.")
    ],
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    give_up: GiveUpOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Go back to the first record at or after a time, by record timestamps; never forward.

    Partitions that the pipeline has not read yet are left out: the next start reads them from their beginning.
    """
    since = moment(to_time)

    def wanted(desk: Desk, before: Positions) -> Positions:
        from tailrace.admin.since import first_since, records_since
        from tailrace.admin.targets import earlier
        from tailrace.kafka.leader_ends import told_by_leaders

        cluster, places, at = desk.cluster, _places(desk, topic, before), since.timestamp()
        found = told_by_leaders(cluster, places, lambda: first_since(cluster, places, at), UNCHANGED)
        return earlier(before, records_since(desk.pipeline, cluster, found, at))

    _change(file, How(dry_run, yes, give_up, output), wanted)


@app.command()
def accept(
    file: FileArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    give_up: GiveUpOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Continue at the same offsets with the sink configured now and the source topics that exist now.

    For a pipeline whose sink was changed on purpose (TR-310).
    """
    _change(file, How(dry_run, yes, give_up, output), lambda desk, before: {}, accepts=True)


@app.command()
def export(
    file: FileArgument,
    document: Annotated[
        Path | None, typer.Argument(metavar="[DOCUMENT]", help="File to write; the default is stdout.")
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write the pipeline's position as a JSON document, for `import` or an offset store of kind `file`."""
    with _desk(file) as desk:
        from tailrace.progress.positions import to_document
        from tailrace.progress.stores import replace_file

        now = desk.now
        text = to_document(desk.pipeline.pipeline, now.positions)
        if now.state in {"open", "running"}:
            note(f"the pipeline is {now.state}: the offsets are those after batch {now.next_batch - 1}")
        if document is None:
            say(text.rstrip()) if output is Output.TEXT else emit(json.loads(text))
            return
        try:
            replace_file(document, text)
        except OSError as error:
            what = f"{document} cannot be written: {error}"
            raise OptionRefused(what, kept=UNCHANGED, then="name another file") from error
    if output is Output.JSON:
        emit({"pipeline": desk.pipeline.pipeline, "document": str(document), "partitions": len(now.positions)})
    else:
        done(f"exported: {len(now.positions)} partitions to {document}", f"tailrace offsets import {file} {document}")


@app.command("import")
def import_(
    file: FileArgument,
    document: Annotated[Path, typer.Argument(help="A document from `tailrace offsets export`.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    give_up: GiveUpOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Set the offsets of a JSON document; partitions it does not name stay where they are."""
    from tailrace.progress.positions import from_document

    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionRefused(f"{document} cannot be read: {error}", kept=UNCHANGED, then="check the path") from error
    wanted = from_document(text, str(document))
    if not wanted:
        raise OptionRefused(f"{document} holds no offsets", kept=UNCHANGED, then="tailrace offsets export FILE")
    _change(file, How(dry_run, yes, give_up, output), lambda desk, before: wanted)


def _change(
    file: Path,
    how: How,
    wanted: Callable[[Desk, Positions], Mapping[Place, int]],
    *,
    alone: bool = False,
    accepts: bool = False,
) -> None:
    """Show the change, ask, write it to the ledger and then to the store."""
    if not (how.yes or how.dry_run or interactive()):
        raise OptionRefused(
            "a change needs confirmation, and there is no terminal to ask on", kept=UNCHANGED, then="add --yes"
        )
    with _desk(file) as desk:
        from tailrace.admin import offsets, targets

        offsets.movable(desk.pipeline, desk.now, str(file), how.give_up)
        before = offsets.base(desk.now, how.give_up)
        named = wanted(desk, before)
        target = targets.targets(desk.pipeline, desk.cluster, before, named, alone=alone)
        # The ledger's position is the end of an open batch, so giving the batch up is a change in itself.
        moves = targets.moves(desk.now.positions, target)
        result: dict[str, Any] = {
            "pipeline": desk.pipeline.pipeline,
            "changed": False,
            "dry_run": how.dry_run,
            "moves": [each.as_dict() for each in moves],
        }
        if moves and how.output is Output.TEXT:
            rows = [(*each.place, each.before, each.after, each.meaning) for each in moves]
            table(("topic", "partition", "from", "to", "which"), rows)
        missing = targets.left_out(desk.pipeline, before, target, alone=alone)
        for topic, partition in sorted(set(desk.now.positions) - set(target)):
            kept = "is not there, or not read, now; its offset is kept"
            there = (topic, partition) in missing
            note(f"{topic}-{partition} {kept if there else 'no longer exists, and is dropped'}")
        # A pipeline that has never run has no position yet: setting one is a change even if nothing moves.
        idle = not moves and desk.now.state == "stopped"
        if idle and (named or how.give_up or accepts):  # the same offsets may be what ends a refusal
            given = (desk.pipeline, desk.cluster, desk.now, target, desk.ledger, named, missing)
            idle = not offsets.needed(*given, accepts=accepts)
        name = desk.pipeline.pipeline
        what = f"{len(moves)} offsets of {name}" if moves else f"the plan of {name} at the same offsets"
        if not idle and not how.dry_run:
            if not how.yes and not confirm(f"change {what}?"):
                note(UNCHANGED)
                raise typer.Exit(1)
            offsets.apply(desk.pipeline, desk.cluster, desk.now, target, desk.ledger, named, missing)
            result["changed"] = True
            _keep(desk, target)
    _report(desk, how, result, "" if idle else what, accepts)


def _keep(desk: Desk, target: Positions) -> None:
    """Save to the store; only note a failure, because the ledger already has the change."""
    try:
        desk.store.save(target)
    except OffsetStoreUnusable as error:
        note(f"the ledger was changed, but not the store: {error.what}; the pipeline's next batch writes it")


def _report(desk: Desk, how: How, result: dict[str, Any], what: str, accepts: bool) -> None:
    """Report the change; `what` is empty if there is none."""
    if how.output is Output.JSON:
        emit(result)
    elif result["changed"]:
        done(f"changed: {what}, in the ledger", f"tailrace run {desk.file}")
    elif what:
        done(f"dry run: {what} would change", "repeat it without --dry-run")
    else:
        done(*unchanged(desk.pipeline, desk.file, accepts=accepts))


def _places(desk: Desk, topics: list[str] | None, before: Positions) -> list[Place]:
    from tailrace.admin.targets import present

    there = sorted(present(desk.pipeline, desk.cluster, before))
    unknown = sorted(set(topics or ()) - {topic for topic, _ in there})
    if unknown:
        raise ConfigInvalid(
            f"the pipeline does not read the topic {unknown[0]!r}",
            kept=UNCHANGED,
            then=f"`tailrace offsets show {desk.file}` lists what it reads",
        )
    return [place for place in there if not topics or place[0] in topics]
