"""Where output goes: data to stdout, messages to stderr, and nothing animated outside a terminal."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
import yaml

from tailrace.cli.terminal import (
    LiveTable,
    Output,
    be_quiet,
    cell,
    chosen,
    done,
    emit,
    fail,
    mark,
    note,
    requested,
    table,
)
from tailrace.errors import TopicUnknown


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return true."""
        return True


@pytest.fixture(autouse=True)
def _usual_writing() -> Iterator[None]:
    """Write as without options again after each test."""
    yield
    chosen(Output.TEXT)
    be_quiet(False)


@pytest.fixture
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of a terminal with colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_live_table_is_plain_lines_outside_a_terminal() -> None:
    """It has a header once, then one line per row, without any control character."""
    stream = io.StringIO()
    with LiveTable(("batch", "out"), stream=stream) as live:
        live.row(0, 1234)
        live.row(1, None)
    assert [line.split() for line in stream.getvalue().splitlines()] == [["batch", "out"], ["0", "1,234"], ["1", "–"]]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.usefixtures("a_terminal")
def test_a_live_table_is_redrawn_on_a_terminal() -> None:
    """The cursor goes back, and the last rows stay."""
    stream = Terminal()
    with LiveTable(("batch",), stream=stream) as live:
        for number in range(40):
            live.row(number)
    assert "\x1b[" in stream.getvalue()
    assert "39" in stream.getvalue().splitlines()[-1] + stream.getvalue().splitlines()[-2]


def test_a_quiet_table_writes_nothing() -> None:
    """With JSON output, nothing else is written."""
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
    """It gives the complete message, nothing on stdout, and the error's exit code."""
    error = TopicUnknown("topic 'x'", kept="all", then="create it")
    assert fail(error, Output.TEXT) == 3
    assert capsys.readouterr() == ("", f"{error}\n")


def test_an_error_goes_to_stdout_as_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads errors where it reads results."""
    error = TopicUnknown("topic 'x'", kept="all", then="create it")
    assert fail(error, Output.JSON) == 3
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (error.as_dict(), "")


@pytest.mark.usefixtures("a_terminal")
def test_colours_are_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error is red on a terminal, and not under NO_COLOR."""
    coloured, plain = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", coloured)
    fail(TopicUnknown("x"), Output.TEXT)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", plain)
    fail(TopicUnknown("x"), Output.TEXT)
    assert "31m" in coloured.getvalue()
    assert "31m" not in plain.getvalue()


def test_data_and_advice_go_to_different_streams(capsys: pytest.CaptureFixture[str]) -> None:
    """The closing line is data; the suggested next command and notes are not."""
    emit({"a": "é"})
    done("done: 1", "tailrace explain TR-101")
    note("by the way")
    assert capsys.readouterr() == ('{"a": "é"}\ndone: 1\n', "next: tailrace explain TR-101\nby the way\n")


def test_a_table_in_a_pipe_is_aligned_and_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets all of a cell, however long."""
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
        (["verify", "-o", "yaml"], Output.YAML),
        (["verify", "-oyaml"], Output.YAML),
        (["--output", "text"], Output.TEXT),
        ([], Output.TEXT),
    ],
)
def test_the_output_format_is_known_before_the_command_line_is_parsed(line: list[str], output: Output) -> None:
    """Errors of every kind are written in the requested format."""
    assert requested(line) is output


def test_yaml_has_the_keys_and_values_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, in the same order, whatever its types; commands need not know which of the two is written."""
    result = {"b": [1, None, "é: x", "1"], "a": {"at": Output.TEXT, "text": "two\nlines"}}
    assert chosen(Output.JSON) is Output.JSON
    emit(result)
    as_json = json.loads(capsys.readouterr().out)
    assert chosen(Output.YAML) is Output.JSON
    emit(result)
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    assert as_yaml == as_json
    assert list(as_yaml) == ["b", "a"]


def test_several_results_are_several_yaml_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader tells them apart, as it does lines of JSON."""
    chosen(Output.YAML)
    emit({"n": 1})
    emit({"n": 2})
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [{"n": 1}, {"n": 2}]


def test_table_is_another_name_for_text() -> None:
    """Commands tell two formats apart."""
    assert chosen(Output.TABLE) is Output.TEXT


def test_quiet_commands_write_results_and_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither progress nor the next command."""
    be_quiet(True)
    note("reading")
    done("done: 1", "tailrace explain TR-101")
    with LiveTable(("batch",)) as live:
        live.row(1)
    error = TopicUnknown("topic 'x'")
    fail(error, Output.TEXT)
    assert capsys.readouterr() == ("done: 1\n", f"{error}\n")


@pytest.mark.usefixtures("a_terminal")
def test_marks_have_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets the same text; NO_COLOR is honoured on a terminal too."""
    written = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        mark("fail", "red", "  [b]disk[/b] 10.0 GiB")
        written.append(stream.getvalue())
    assert written == ["\x1b[31mfail\x1b[0m  [b]disk[/b] 10.0 GiB\n", "fail  [b]disk[/b] 10.0 GiB\n"]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", plain := Terminal())
    mark("fail", "red", "  x")
    assert plain.getvalue() == "fail  x\n"
