"""`tailrace preview`: what a pipeline would make of some records, next to the records themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.admin.rejected import text_of
from tailrace.cli.terminal import Block, Output, OutputOption, done, emit, log_to_stderr, note, show
from tailrace.config.file import load

if TYPE_CHECKING:
    from tailrace.previews.model import Outcome, Preview, Rejected, Written
    from tailrace.status.events import Event

_COLUMNS = ("record", "key", "value", "becomes", "key", "value", "warned by")
_BECOMES, _WARNED = 3, 6


def preview(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline's configuration.")],
    records: Annotated[int, typer.Option("--records", "-n", min=1, max=10_000, help="Maximum records to read.")] = 20,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where the records begin: newest, oldest, TOPIC:PARTITION:OFFSET, a time such as "
            "2026-11-20T10:00:00Z, or a file with records, which needs no Kafka.",
        ),
    ] = "newest",
    size: Annotated[int, typer.Option("--bytes", min=1, help="Maximum bytes of a key or a value in the table.")] = 120,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a pipeline would write and reject for some records, and write nothing.

    No group is joined, no topic is created, and no offset is stored. The exit code is 0 if all records would be
    written or dropped by the function, and 1 if one would be rejected or would stop the pipeline.
    """
    log_to_stderr()
    loaded = load(file)
    from tailrace.previews.preview import preview as previewed  # imports PySpark, which --help should not wait for

    found = previewed(loaded, records=records, start=start, emit=_told)
    if output is Output.JSON:
        emit(_document(found))
    else:
        _show(found, size)
    if not found.good:
        raise typer.Exit(1)


def _told(event: Event) -> None:
    from tailrace.status.event_lines import line

    text = line(event)
    if text is not None:
        note(text)


def _show(found: Preview, size: int) -> None:
    matched = not found.unmatched
    warnings = {each.name for each in found.rules if not each.rule.rejects}
    sources = [line for each in found.outcomes for line in _lines(each, size, warnings, matched=matched)]
    kept = [
        number for number in range(len(_COLUMNS)) if number < _BECOMES or any(line[number].strip() for line in sources)
    ]
    if _BECOMES in kept:  # what a record becomes has its columns together
        kept = sorted({*kept, *range(_BECOMES, _WARNED)})
    columns = tuple(_COLUMNS[number] for number in kept)
    sources = [tuple(line[number] for number in kept) for line in sources]
    blocks = [Block(columns=columns, rows=sources)] if sources else []
    if found.others:
        others = [_becomes(each, size) for each in found.others]
        blocks.append(Block(columns=("becomes", "key", "value"), rows=others))
    if found.rules:
        counted = [
            (each.name, each.rule.severity.value, each.checked, each.broken, f"{each.share:.1%}")
            for each in found.rules
        ]
        blocks.append(Block(columns=("rule", "severity", "checked", "broken", "share"), rows=counted))
    show(blocks)
    for stopping in (each for each in found.rules if each.stops):
        note(f"the rule {stopping.name!r} would stop the pipeline at a batch of these records (TR-406)")
    for each in filter(None, (found.unmatched, *found.notes)):
        note(each)
    done(f"{found.summary}; nothing was written")


def _lines(outcome: Outcome, size: int, warnings: Collection[str], *, matched: bool) -> Iterator[tuple[str, ...]]:
    """Yield a line for each record that a source becomes; the source is only on the first."""
    topic, partition, offset = outcome.place
    source = (f"{topic} {partition}:{offset}", _text(outcome.source.key, size), _text(outcome.source.value, size))
    found: list[Written | Rejected] = [*outcome.written, *outcome.rejected]
    results = [_becomes(each, size) for each in found]
    if outcome.raised is not None:
        results.append(("stops the pipeline", "", outcome.raised))
    if not results:
        results.append(("dropped", "", "") if matched else ("", "", ""))
    warned = ", ".join(name for name in outcome.broken if name in warnings) or " "
    for number, result in enumerate(results):
        yield (*(source if number == 0 else (" ", " ", " ")), *result, warned if number == 0 else " ")


def _becomes(record: Written | Rejected, size: int) -> tuple[str, str, str]:
    from tailrace.previews.model import Written

    if isinstance(record, Written):
        place = record.topic if record.partition is None else f"{record.topic} {record.partition}"
        return place, _text(record.key, size), _text(record.value, size)
    why = record.reason + (f": {record.detail}" if record.detail else "")
    return f"rejected ({record.stage})", _text(record.key, size), why


def _text(value: bytes | None, size: int) -> str:
    """Return bytes on one line; bytes that are no text in hexadecimal."""
    if value is None:
        return "null"
    text = text_of(value)
    whole = text if text is not None else f"0x{value.hex()}"
    return whole if len(whole) <= size else f"{whole[:size]}… ({len(value)} bytes)"


# -- for programs ------------------------------------------------------------------------------------------


def _document(found: Preview) -> dict[str, Any]:
    from tailrace.previews.model import Written
    from tailrace.previews.samples import document

    return {
        "pipeline": found.pipeline,
        "from": found.origin,
        "records": [
            {
                "source": document(each.source),
                "written": [_written(one) for one in each.written],
                "rejected": [_rejected(one) for one in each.rejected],
                "raised": each.raised,
                "broken": list(each.broken),
            }
            for each in found.outcomes
        ],
        "unmatched": found.unmatched or None,
        "written": [_written(one) for one in found.others if isinstance(one, Written)],
        "rejected": [_rejected(one) for one in found.others if not isinstance(one, Written)],
        "rules": [each.as_dict() for each in found.rules],
        "counts": {
            "records": len(found.outcomes),
            "written": len(found.all_written),
            "rejected": len(found.all_rejected),
            "raised": len(found.raised),
        },
        "notes": list(found.notes),
    }


def _written(record: Written) -> dict[str, Any]:
    from tailrace.previews.samples import field, listed

    content = {**field("key", record.key), **field("value", record.value), "headers": listed(record.headers)}
    return {"topic": record.topic, "partition": record.partition, "timestamp": record.timestamp, **content}


def _rejected(record: Rejected) -> dict[str, Any]:
    from tailrace.previews.samples import field, listed

    why = {"stage": record.stage, "reason": record.reason, "detail": record.detail, "sink_topic": record.sink_topic}
    return {**why, **field("key", record.key), **field("value", record.value), "headers": listed(record.headers)}
