"""`tailrace explain [CODE]`: what an error means, what was kept safe, and what to do next.

Every error message ends by naming this command, so it must work when nothing else does: it needs no Kafka, no Spark
and no configuration, and draws nothing.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

from tailrace.cli.terminal import Output, OutputOption, emit
from tailrace.errors import TailraceError, all_errors

NOT_FOUND = 2
# Another package adds its errors with an entry point of this group, `name = "package.module"`.
_GROUP = "tailrace.errors"


def explain(
    code: Annotated[str, typer.Argument(help="Error code, such as TR-101; without it, all are listed.")] = "",
    output: OutputOption = Output.TEXT,
) -> None:
    """Explain what an error code means, and what to do."""
    _import_added()
    known = {kind.code: kind for kind in all_errors()}
    if not code:
        _list(list(known.values()), output)
    elif (found := known.get(normal(code))) is not None:
        _one(found, output)
    else:
        _unknown(code, nearest(code, list(known)), output)
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


def _list(kinds: list[type[TailraceError]], output: Output) -> None:
    if output is Output.JSON:
        emit({"errors": [_record(kind) for kind in kinds]})
        return
    for kind in kinds:
        typer.echo(f"{kind.code}  {kind.title}")
    typer.echo(f"{len(kinds)} errors; next: tailrace explain {kinds[0].code}", err=True)


def _unknown(code: str, near: list[str], output: Output) -> None:
    if output is Output.JSON:
        emit({"error": "unknown code", "code": code, "nearest": near, "exit": NOT_FOUND})
        return
    hint = f"did you mean {', '.join(near)}?" if near else "a code looks like TR-101"
    typer.echo(f"no error has the code {code!r}; {hint}\n  next: tailrace explain", err=True)


def _record(kind: type[TailraceError]) -> dict[str, object]:
    return {"code": kind.code, "title": kind.title, "exit": kind.exit_code, "text": inspect.getdoc(kind) or ""}
