"""`tailrace verify`: the exactly-once proof for any two topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from tailrace.admin.verify import Comparison, Identity, Times
from tailrace.admin.verify import verify as prove
from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.terminal import Output, OutputOption, cell, done, emit, note
from tailrace.config import Isolation
from tailrace.errors import OptionRefused, RecordsDiffer

T = TypeVar("T")

_MEBIBYTE = 1024 * 1024
_HOW = "Where to find a record's id: key, header:NAME or json:$.path."


def verify(
    input_topic: Annotated[str, typer.Argument(metavar="INPUT", help="The topic the records went into.")],
    output_topic: Annotated[str, typer.Argument(metavar="OUTPUT", help="The topic they must have come out of.")],
    bootstrap: BootstrapOption = None,
    by: Annotated[str, typer.Option("--by", help=_HOW)] = "key",
    also: Annotated[
        list[str] | None, typer.Option("--also", metavar="TOPIC", help="A further output topic; may be repeated.")
    ] = None,
    each: Annotated[
        str,
        typer.Option(
            "--each", help="How many outputs an input record leads to: a number, or header:NAME or json:$.path in it."
        ),
    ] = "1",
    in_by: Annotated[str | None, typer.Option("--in-by", help="Like --by, for the input only.")] = None,
    out_by: Annotated[str | None, typer.Option("--out-by", help="Like --by, for the output only.")] = None,
    rejected: Annotated[
        str | None, typer.Option("--rejected", help="The topic of rejected records; these count as delivered.")
    ] = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether to read records of open and aborted transactions.")
    ] = Isolation.READ_COMMITTED,
    memory: Annotated[
        int, typer.Option("--memory", min=1, help="MiB of memory for the comparison; beyond that it uses disk.")
    ] = 64,
    limit: Annotated[float, typer.Option("--limit", min=1, help="Give up after this many seconds of silence.")] = 60.0,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Count the records lost or duplicated between two topics.

    A plain consumer reads both from the beginning to the current end, so let the pipeline drain first. Each input
    record must have come out once, or been rejected once; otherwise the exit code is 1. If the function makes several
    records of one, or writes to several topics, say so with --each and --also.
    """
    went_in, came_out = _identity(in_by or by, "--in-by" if in_by else "--by"), _identity(out_by or by, "--out-by")
    kafka = connection(bootstrap, properties, option)
    if output is Output.TEXT:
        note(f"reading {input_topic} and {output_topic} at {kafka.bootstrap_servers}, {isolation}")
    found = prove(
        kafka,
        input_topic,
        [output_topic, *(also or [])],
        went_in,
        each=_parsed(Times.parse, each, "--each", "--each 3, or --each header:parts"),
        output_identity=came_out,
        rejected_topic=rejected,
        isolation=isolation,
        limit=limit,
        memory=memory * _MEBIBYTE,
    )
    to = ", ".join([output_topic, *(also or [])])
    report(found, output, f"{input_topic} to {to}, by {went_in}" + _also(went_in, came_out))


def report(found: Comparison, output: Output, what: str) -> None:
    """Write the result; raise RecordsDiffer if the proof failed."""
    if output is Output.JSON:
        emit(found.as_dict())
        if not found.exact:
            raise typer.Exit(RecordsDiffer.exit_code)  # the one object says it all
        return
    done(f"verified: {found}")
    if not found.exact:
        raise RecordsDiffer(
            f"{what}: {found}{_examples(found)}",
            kept="both topics are unchanged; this command only reads",
            then=_advice(found),
        )


def _parsed(parse: Callable[[str], T], text: str, option: str, example: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise OptionRefused(
            f"{option}: {error}", kept="nothing was read or written", then=f"for example: {example}"
        ) from None


def _identity(text: str, option: str) -> Identity:
    return _parsed(Identity.parse, text, option, "--by json:$.id")


def _also(went_in: Identity, came_out: Identity) -> str:
    return "" if went_in == came_out else f" in the input and {came_out} in the output"


def _examples(found: Comparison) -> str:
    kinds = ("lost", "duplicated", "unexpected")
    lines = [f"\n    {kind}: {', '.join(map(cell, ids))}" for kind in kinds if (ids := getattr(found.examples, kind))]
    return "".join(lines)


def _advice(found: Comparison) -> str:
    if found.unidentified:
        return "name the id's place with --by, --in-by and --out-by, and the rejected topic with --rejected"
    if found.duplicated and not found.unexpected and found.wanted is None and found.duplicated % max(found.in_, 1) == 0:
        return f"if the function makes {1 + found.duplicated // found.in_} records of each, say so with --each"
    if found.lost and not (found.duplicated or found.unexpected):
        return (
            "if the pipeline is still running, let it drain and verify again; name its rejected topic with --rejected, "
            "and further output topics with --also; if the function drops records, say which with --each"
        )
    return "look for the ids above in the output topic, and in the pipeline's log from that time"
