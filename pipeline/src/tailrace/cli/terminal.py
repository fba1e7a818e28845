"""Terminal and machine-readable output, and the only user of rich.

Data goes to stdout and progress to stderr, so that a pipe carries nothing but data. Live tables appear only on a
terminal; elsewhere the same rows come as plain lines. rich honours NO_COLOR by itself, and is imported only where
something is drawn. A program may ask for JSON or YAML: the same object either way.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO

import typer

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table as RichTable

NOTHING = "–"
_SHOWN = 15  # rows of a live table
_SHORT = re.compile("-[a-zA-Z]+")  # an option of one letter, or several at once


class Output(StrEnum):
    """The format of the result: for people or for programs. Commands see only TEXT and JSON; see `chosen`."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass
class _Writing:
    """How this process writes, as its command line asks: set once, before a command runs."""

    yaml: bool = False
    quiet: bool = False


_writing = _Writing()


def chosen(output: Output) -> Output:
    """Note in which notation `emit` writes; return TEXT or JSON, the two that commands tell apart."""
    _writing.yaml = output is Output.YAML
    return Output.JSON if output in {Output.JSON, Output.YAML} else Output.TEXT


def be_quiet(quiet: bool) -> None:
    """Write no progress and no advice from now on; results and errors are still written."""
    _writing.quiet = quiet


OutputOption = Annotated[
    Output,
    typer.Option(
        "--output", "-o", callback=chosen, help="Write the result for people (text or table) or for programs."
    ),
]


def requested(arguments: Sequence[str]) -> Output:
    """Return the output format a command line asks for, even if the rest of it is invalid."""
    for before, each in zip(("", *arguments), arguments, strict=False):
        for output in (Output.JSON, Output.YAML):
            if each == f"--output={output}" or (_SHORT.fullmatch(each) and each.endswith(f"o{output}")):
                return output
            if each == output and (before == "--output" or (_SHORT.fullmatch(before) and before.endswith("o"))):
                return output
    return Output.TEXT


def console(stream: TextIO) -> Console:
    """Return a console that prints text as it is: no markup, no guessed colours, no wrapping outside a terminal."""
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=not stream.isatty())


def interactive() -> bool:
    """Return whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Ask on stderr; call this only if `interactive()` is true."""
    return typer.confirm(question, default=False, err=True)


class ReaderGone(Exception):
    """Raised when what reads the output has ended; Typer would take the OSError for a failure of the command."""


def say(text: str = "") -> None:
    """Write a line of the result."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def emit(result: Mapping[str, Any]) -> None:
    """Write the result as one JSON object on one line, or as one YAML document with the same keys."""
    text = json.dumps(result, ensure_ascii=False, default=str)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # half a character, or a terminal that lacks some
        text = json.dumps(result, default=str)
    if not _writing.yaml:
        say(text)
        return
    import yaml

    # By way of JSON: both notations then have the same values, whatever types the result has.
    say("---\n" + yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=sys.maxsize).rstrip())


def mark(word: str, style: str, line: str) -> None:
    """Write a line of the result that begins with a word, coloured on a terminal."""
    if not sys.stdout.isatty():
        say(word + line)
        return
    from rich.text import Text

    console(sys.stdout).print(Text.assemble((word, style), line), soft_wrap=True)


def note(text: str) -> None:
    """Write a line of progress or advice to stderr, unless --quiet was given."""
    if not _writing.quiet:
        _styled(sys.stderr, text, "dim")


def done(line: str, then: str = "") -> None:
    """Write the closing line, and the command to try next."""
    say(line)
    if then:
        note(f"next: {then}")


def fail(error: TailraceError, output: Output) -> int:
    """Show an error, on stdout for programs or as text on stderr, and return the exit code."""
    if output is Output.JSON:
        emit(error.as_dict())
    else:
        first, *others = str(error).split("\n")
        _styled(sys.stderr, first, "bold red")
        for line in others:
            _styled(sys.stderr, line)
    return error.exit_code


def log_to_stderr() -> None:
    """Log to stderr at the level in TAILRACE_LOG, if it is set; debug has a line per batch."""
    level = os.environ.get("TAILRACE_LOG", "").upper()
    if level in logging.getLevelNamesMapping():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log = logging.getLogger("tailrace")
        log.addHandler(handler)
        log.setLevel(level)


def cell(value: object) -> str:
    """Format a value for a table, on one line."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "".join(letter if letter.isprintable() else "·" for letter in str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table of the result: drawn on a terminal, aligned and uncut elsewhere."""
    texts = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        console(sys.stdout).print(_drawn(columns, texts))
        return
    widths = [max(map(len, each)) for each in zip(columns, *texts, strict=True)]
    for line in [list(columns), *texts]:
        say(_aligned(line, widths))


class LiveTable:
    """Rows as they come, on stderr: a table that is redrawn on a terminal, plain lines elsewhere.

    A row is printed when it is complete; the last rows stay on the screen when the table ends.
    """

    def __init__(self, columns: Sequence[str], *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._columns = list(columns)
        self._quiet = quiet or _writing.quiet
        self._stream = sys.stderr if stream is None else stream
        self._rows: deque[list[str]] = deque(maxlen=_SHOWN)
        self._live: Live | None = None
        self._widths = [max(len(name), 10) for name in self._columns]
        self._begun = False

    def __enter__(self) -> Self:
        if self._stream.isatty() and not self._quiet:
            from rich.live import Live

            self._live = Live(_drawn(self._columns, ()), console=console(self._stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def row(self, *values: object) -> None:
        """Add a row, with one value per column."""
        texts = [cell(value) for value in values]
        if len(texts) != len(self._columns):
            raise ValueError(f"a row of {len(texts)} values for {len(self._columns)} columns {self._columns}")
        if self._quiet:
            return
        if self._live is not None:
            self._rows.append(texts)
            self._live.update(_drawn(self._columns, self._rows), refresh=True)
            return
        if not self._begun:
            self._begun = True
            self._line(self._columns)
        self._line(texts)

    def note(self, text: str) -> None:
        """Write a line between the rows; it scrolls above a live table."""
        if self._live is not None:
            self._live.console.print(text, style="dim")
        elif not self._quiet:
            self._line([text])

    def _line(self, texts: Sequence[str]) -> None:
        self._stream.write(_aligned(texts, self._widths) + "\n")
        self._stream.flush()


def _styled(stream: TextIO, text: str, style: str = "") -> None:
    """Write a line, styled on a terminal and plain elsewhere."""
    if stream.isatty():
        console(stream).print(text, style=style, soft_wrap=True)
    else:
        stream.write(f"{text}\n")
        stream.flush()


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=False)).rstrip()


def _drawn(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(text) for text in row))
    return drawn


@dataclass(frozen=True)
class Block:
    """Part of a screen: lines, or a table with its heading."""

    lines: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    style: str = ""  # of the lines, on a live screen


def show(blocks: Sequence[Block]) -> None:
    """Write blocks as the result, one below another."""
    for number, block in enumerate(blocks):
        if number:
            say()
        for line in block.lines:
            say(line)
        if block.columns:
            table(block.columns, block.rows)


class Screen:
    """Blocks redrawn in place on stdout; for terminals only."""

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live: Live = Live(console=console(sys.stdout), auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, blocks: Sequence[Block]) -> None:
        """Draw these blocks in place of the previous ones."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = []
        for block in blocks:
            parts += [Text(line, style=block.style) for line in block.lines]
            if block.columns:
                parts.append(_drawn(block.columns, [[cell(value) for value in row] for row in block.rows]))
            parts.append(Text())
        self._live.update(Group(*parts[:-1]), refresh=True)
