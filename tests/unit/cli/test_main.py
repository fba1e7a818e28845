"""The command's entry: what it makes of an error."""

from __future__ import annotations

from tailrace import errors
from tailrace.cli.main import with_file


def test_the_next_command_names_the_file_that_was_given() -> None:
    """It can be copied as it stands; a name that the shell would split is quoted, another word stays."""
    error = errors.QueryFailed("x", then="tailrace doctor FILE; FILES stay")
    assert (
        with_file(error, ["run", "my pipeline.yaml", "--batch"]).then
        == "tailrace doctor 'my pipeline.yaml'; FILES stay"
    )


def test_without_a_file_the_place_of_one_stays() -> None:
    """As in `tailrace verify`, which has none."""
    assert with_file(errors.QueryFailed("x", then="tailrace doctor FILE"), ["verify", "a", "b"]).then.endswith("FILE")
