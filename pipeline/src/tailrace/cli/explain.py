"""`tailrace explain [CODE]`: what an error means, and what to do next; or what a key of the configuration means.

Every error message ends by naming this command, so it must work when nothing else does: it needs no Kafka, no Spark
and no configuration, and draws nothing.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.terminal import Output, OutputOption, emit, note
from tailrace.errors import TailraceError, all_errors

if TYPE_CHECKING:
    from tailrace.config.file.described import Described

NOT_FOUND = 2
WIDTH = 100
# Another package adds its errors with an entry point of this group, `name = "package.module"`.
_GROUP = "tailrace.errors"


def explain(
    code: Annotated[
        str,
        typer.Argument(
            help="Error code (TR-101) or key (sink.topic); `configuration` lists all keys, no code all errors."
        ),
    ] = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Explain what an error code means and what to do, or what a key of the pipeline's file means."""
    _import_added()
    known = {kind.code: kind for kind in all_errors()}
    if not code:
        _list(list(known.values()), output)
    elif (found := known.get(normal(code))) is not None:
        _one(found, output)
    else:
        from tailrace.config.file import described  # not needed by an error's page, which must always be shown

        if keys := described.find(code):
            _keys(keys, output)
            return
        _unknown(code, nearest(code, list(known)) or described.near(code), output)
        raise typer.Exit(NOT_FOUND)


def _import_added() -> None:
    """Import the modules with the errors of other packages; one that fails is reported, and the others are there."""
    for each in entry_points(group=_GROUP):
        try:
            each.load()
        except Exception as error:  # another package may raise anything
            typer.echo(f"the errors in {each.value} cannot be loaded: {type(error).__name__}: {error}", err=True)


def normal(code: str) -> str:
    """Normalize a code: `101`, `tr101` and `TR-101` are the same."""
    match = re.fullmatch(r"(?:TR)?[-_ ]?(\d{3})", code.strip(), re.IGNORECASE)
    return f"TR-{match.group(1)}" if match else code.strip().upper()


def nearest(code: str, known: Sequence[str]) -> list[str]:
    """Return up to three similar codes, those with the same digits first."""
    wanted = normal(code)
    swapped = [each for each in known if sorted(each) == sorted(wanted)]
    return list(dict.fromkeys([*swapped, *difflib.get_close_matches(wanted, known, n=3, cutoff=0.7)]))[:3]


def _one(kind: type[TailraceError], output: Output) -> None:
    if output is Output.JSON:
        emit(_record(kind))
        return
    typer.echo(f"{kind.code} {kind.title} (exit code {kind.exit_code})\n")
    typer.echo(inspect.getdoc(kind))


def _keys(keys: list[Described], output: Output) -> None:
    if output is Output.JSON:
        emit({"keys": [_key(key) for key in keys]})
        return
    for key in keys:
        default = key.default if key.default in ("needed", "optional") else f"default {key.default}"
        options = f"One of: {', '.join(key.options)}." if key.options else ""
        typer.echo(f"{key.path}: {key.type}, {default}")
        for line in (*textwrap.wrap(key.meaning, WIDTH), *textwrap.wrap(options, WIDTH)):
            typer.echo(f"    {line}")


def _key(key: Described) -> dict[str, object]:
    return {
        "key": key.path,
        "type": key.type,
        "default": key.default,
        "text": key.meaning,
        "options": list(key.options),
    }


def _list(kinds: list[type[TailraceError]], output: Output) -> None:
    if output is Output.JSON:
        emit({"errors": [_record(kind) for kind in kinds]})
        return
    for kind in kinds:
        typer.echo(f"{kind.code}  {kind.title}")
    note(f"{len(kinds)} errors; next: tailrace explain {kinds[0].code}")


def _unknown(code: str, near: list[str], output: Output) -> None:
    if output is Output.JSON:
        emit({"error": "unknown code", "code": code, "nearest": near, "exit": NOT_FOUND})
        return
    hint = f"did you mean {', '.join(near)}?" if near else "a code looks like TR-101, a key like sink.topic"
    typer.echo(f"{code!r} is neither an error's code nor a key; {hint}\n  next: tailrace explain", err=True)


def _record(kind: type[TailraceError]) -> dict[str, object]:
    return {"code": kind.code, "title": kind.title, "exit": kind.exit_code, "text": inspect.getdoc(kind) or ""}
