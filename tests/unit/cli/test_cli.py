"""The command line end to end: fast where it can be, and clear about wrong use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.admin.selection import Marks
from tailrace.cli.main import COMMANDS

FAR = "pyspark", "confluent_kafka", "pandas", "pyarrow"


def tailrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    """The list of commands needs neither Spark nor Kafka nor rich."""
    code = (
        "import sys\nfrom tailrace.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in (*{FAR}, 'rich') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "[]"
    assert all(command.help in done.stdout for command in COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_shows_its_help_without_spark(name: str) -> None:
    """`--help` works for every command, and none needs Spark for it."""
    code = (
        f"import sys\nfrom tailrace.cli.main import app\n"
        f"try:\n    app(['{name}', '--help'])\nexcept SystemExit as end:\n    status = end.code\n"
        "print(status, 'pyspark' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "0 False"
    assert "Usage:" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_in_the_module_that_the_list_names(name: str) -> None:
    """The listed module and function exist."""
    assert hasattr(import_module(COMMANDS[name].module), COMMANDS[name].name)


def test_an_unknown_command_is_named_with_the_nearest() -> None:
    """A typo gets the most likely command, and the exit code of a usage error."""
    done = tailrace("verfy")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean 'verify'?" in done.stderr


def test_the_version_is_that_of_the_package() -> None:
    """`--version` prints it and ends at once."""
    import tailrace as package

    assert tailrace("--version").stdout == f"tailrace {package.__version__}\n"


def test_explain_prints_the_text_of_the_error() -> None:
    """The text is the docstring of the error's class."""
    done = tailrace("explain", "TR-601")
    assert done.returncode == 0
    assert "records lost or duplicated" in done.stdout


def test_an_error_gives_a_message_and_an_exit_code_without_traceback() -> None:
    """Tailrace's errors are shown as written, on stderr."""
    done = tailrace("verify", "a", "b", "--by", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TR-105 option refused")
    assert "Traceback" not in done.stderr


def test_an_error_is_one_json_object_if_json_was_requested() -> None:
    """A program finds the code and the next step in one object."""
    done = tailrace("verify", "a", "b", "--by", "nonsense", "--output", "json")
    assert (json.loads(done.stdout)["error"], json.loads(done.stdout)["exit"], done.stderr) == ("TR-105", 2, "")


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "a", "b", "--by", "nonsense", "-qo", "json"),
        ("verify", "a", "b", "--by", "nonsense", "-qojson"),
        ("verify", "a", "b", "--nope", "-o", "json"),
        ("verfy", "--output=json"),
        ("offsets", "nope", "-o", "json"),
    ],
)
def test_wrong_use_is_one_json_object_if_json_was_requested(words: tuple[str, ...]) -> None:
    """A program reads the output, however the options are written, and whoever refuses them."""
    done = tailrace(*words)
    assert (json.loads(done.stdout)["error"], done.returncode, done.stderr) == ("TR-105", 2, "")


def into_a_closed_pipe(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with an output whose reader has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        return subprocess.run(
            [sys.executable, "-m", "tailrace.cli.main", *words],
            stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip


def test_a_closed_pipe_ends_quietly() -> None:
    """A reader that takes only the first line causes no traceback."""
    assert into_a_closed_pipe("--help").stderr == ""


def test_pipe_whose_reader_has_ended_ends_the_command_as_the_signal_would() -> None:
    """Its exit code is 141, not that of a failed proof."""
    done = into_a_closed_pipe("schema")
    assert (done.returncode, done.stderr) == (141, "")


@given(st.sets(st.integers(0, 30)), st.lists(st.tuples(st.sets(st.integers(0, 30)), st.integers(0, 31)), max_size=5))
def test_marks_remember_what_was_replayed_and_nothing_else(
    records: set[int], replays: list[tuple[set[int], int]]
) -> None:
    """After any replays, in any order, exactly the replayed records are marked, also behind a list that has ended."""
    offsets, marks, sent = sorted(records), Marks(), set[int]()
    for replay, end in replays:
        listed = [offset for offset in offsets if offset < end]
        now = replay.intersection(listed)
        marks = marks.after(listed, now.__contains__)
        marks = Marks.read(marks.before, marks.metadata + "\0")
        sent |= now
        assert {offset for offset in offsets if offset in marks} == sent
