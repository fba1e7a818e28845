"""`tailrace explain`: from an error code to its meaning."""

from __future__ import annotations

import inspect
import json

import pytest
import typer
from typer.testing import CliRunner, Result

from tailrace.cli.explain import explain
from tailrace.errors import DriverFenced, all_errors


def run(*arguments: str) -> Result:
    """Call the command as an application of its own."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(explain)
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("code", ["TR-301", "tr-301", "tr301", "301", " TR_301 "])
def test_code_is_explained_however_it_is_written(code: str) -> None:
    """It prints the title, the exit code and the error's own text."""
    result = run(code)
    assert result.exit_code == 0
    assert result.stdout.startswith("TR-301 fenced by another driver (exit code 7)\n\n")
    assert result.stdout.endswith(f"\n\n{inspect.getdoc(DriverFenced)}\n")


def test_all_errors_are_listed_without_a_code() -> None:
    """Each error has one line with code and title."""
    result = run()
    assert result.exit_code == 0
    assert result.stdout.split("\n")[:-1] == [f"{kind.code}  {kind.title}" for kind in all_errors()]


def test_wrong_code_names_the_nearest() -> None:
    """The exit code is that of a usage error."""
    result = run("TR-130")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "TR-301" in result.stderr


def test_text_that_is_not_a_code_gets_an_example() -> None:
    """No code is near enough to suggest."""
    result = run("help me")
    assert result.exit_code == 2
    assert "a code looks like TR-101" in result.stderr


def test_json_has_the_same_content() -> None:
    """It is one object on one line, for one error, for all, and for none."""
    one = json.loads(run("301", "--output", "json").stdout)
    assert one == {
        "code": "TR-301",
        "title": DriverFenced.title,
        "exit": 7,
        "text": inspect.getdoc(DriverFenced),
    }
    assert one in json.loads(run("--output", "json").stdout)["errors"]
    wrong = json.loads(run("TR-130", "--output", "json").stdout)
    assert (wrong["error"], wrong["exit"]) == ("unknown code", 2)
    assert "TR-301" in wrong["nearest"]


def test_key_is_explained_with_its_type_and_default() -> None:
    """Somebody who installed the package has no pages of the reference."""
    result = run("batch.max_records")
    assert result.exit_code == 0
    assert result.stdout.startswith("batch.max_records: whole number, at least 1, default `200000`\n    Maximum number")


def test_section_is_explained_with_all_its_keys() -> None:
    """The options that Kafka takes are listed too."""
    lines = run("sink").stdout.split("\n")
    assert lines[0] == "sink: section, needed"
    assert {"sink.topic: text, default none", "sink.registry.url: text, needed"} <= set(lines)
    assert "compression.type" in run("sink.options").stdout


def test_configuration_lists_every_key() -> None:
    """The messages about an invalid configuration name this command."""
    keys = json.loads(run("configuration", "-o", "json").stdout)["keys"]
    assert {"pipeline", "source.topics", "kafka.bootstrap.servers", "sink.options"} <= {each["key"] for each in keys}


@pytest.mark.parametrize(("word", "near"), [("topic", "sink.topic"), ("source.topcs", "source.topics")])
def test_wrong_key_names_the_nearest(word: str, near: str) -> None:
    """A key without its section is found too."""
    result = run(word)
    assert result.exit_code == 2
    assert near in result.stderr
