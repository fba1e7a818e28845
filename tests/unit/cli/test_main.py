"""The command's entry point: how it presents an error."""

from __future__ import annotations

from tailrace import errors
from tailrace.cli.main import with_file


def test_the_suggested_command_names_the_given_file() -> None:
    """It can be copied as is: a name that the shell would split is quoted, and other words stay."""
    error = errors.QueryFailed("x", then="tailrace doctor FILE; FILES stay")
    assert (
        with_file(error, ["run", "my pipeline.yaml", "--batch"]).then
        == "tailrace doctor 'my pipeline.yaml'; FILES stay"
    )


def test_the_suggested_command_keeps_its_placeholder_without_a_file() -> None:
    """`tailrace verify`, for one, takes no file."""
    assert with_file(errors.QueryFailed("x", then="tailrace doctor FILE"), ["verify", "a", "b"]).then.endswith("FILE")
