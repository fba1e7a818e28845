"""What goes where: data to stdout, chatter to stderr, and nothing that moves where nobody looks."""

from __future__ import annotations

import io
import json

import pytest

from tailrace.cli.terminal import LiveTable, Output, cell, done, emit, fail, note, requested, table
from tailrace.errors import TopicUnknown


class Terminal(io.StringIO):
    """A stream that a person looks at."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a terminal with colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_live_table_is_plain_lines_where_nobody_looks() -> None:
    """A header once, then a line a row, without a single control character."""
    stream = io.StringIO()
    with LiveTable(("batch", "out"), stream=stream) as live:
        live.row(0, 1234)
        live.row(1, None)
    assert [line.split() for line in stream.getvalue().splitlines()] == [["batch", "out"], ["0", "1,234"], ["1", "–"]]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.usefixtures("a_terminal")
def test_a_live_table_is_drawn_anew_on_a_terminal() -> None:
    """On a terminal the cursor goes back, and the last rows stay."""
    stream = Terminal()
    with LiveTable(("batch",), stream=stream) as live:
        for number in range(40):
            live.row(number)
    assert "\x1b[" in stream.getvalue()
    assert "39" in stream.getvalue().splitlines()[-1] + stream.getvalue().splitlines()[-2]


def test_a_quiet_table_says_nothing() -> None:
    """With JSON on its way nothing else is written."""
    stream = io.StringIO()
    with LiveTable(("batch",), quiet=True, stream=stream) as live:
        live.row(1)
        live.note("a line")
    assert stream.getvalue() == ""


def test_a_row_that_does_not_fit_is_refused() -> None:
    """A missing value would shift all that follow."""
    with pytest.raises(ValueError, match="1 values for 2 columns"), LiveTable(("a", "b"), quiet=True) as live:
        live.row(1)


def test_an_error_goes_to_stderr_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole message, nothing on stdout, and the error's exit code."""
    error = TopicUnknown("topic 'x'", kept="all", then="create it")
    assert fail(error, Output.TEXT) == 3
    assert capsys.readouterr() == ("", f"{error}\n")


def test_an_error_goes_to_stdout_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads it where it reads results."""
    error = TopicUnknown("topic 'x'", kept="all", then="create it")
    assert fail(error, Output.JSON) == 3
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (error.as_dict(), "")


@pytest.mark.usefixtures("a_terminal")
def test_colours_are_left_out_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is red on a terminal, and not under NO_COLOR."""
    coloured, plain = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", coloured)
    fail(TopicUnknown("x"), Output.TEXT)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", plain)
    fail(TopicUnknown("x"), Output.TEXT)
    assert "31m" in coloured.getvalue()
    assert "31m" not in plain.getvalue()


def test_data_and_advice_part_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """The closing line is data; what to try next and notes are not."""
    emit({"a": "é"})
    done("done: 1", "tailrace explain TR-101")
    note("by the way")
    assert capsys.readouterr() == ('{"a": "é"}\ndone: 1\n', "next: tailrace explain TR-101\nby the way\n")


def test_a_table_in_a_pipe_is_aligned_and_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    """However long a cell is, a pipe gets all of it."""
    table(("name", "text"), [("a", "x" * 500), ("long name", "[bold]y[/bold]")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name       text", "a          " + "x" * 500, "long name  [bold]y[/bold]"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), ("", "–"), (1234567, "1,234,567"), (0.25, "0.2"), (True, "True"), ("a\x1b\nb", "a··b")],
)
def test_a_cell_is_one_line_that_cannot_move_the_cursor(value: object, shown: str) -> None:
    """Numbers are grouped, nothing is a dash, control characters are dots."""
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (["verify", "--output", "json"], Output.JSON),
        (["verify", "--output=json", "x"], Output.JSON),
        (["verify", "-o", "json"], Output.JSON),
        (["verify", "json"], Output.TEXT),
        (["--output", "text"], Output.TEXT),
        ([], Output.TEXT),
    ],
)
def test_the_output_is_known_before_the_command_line_is_understood(line: list[str], output: Output) -> None:
    """Errors of every kind are written as the caller asked."""
    assert requested(line) is output
