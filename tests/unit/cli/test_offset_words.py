"""Times and positions on the command line."""

from __future__ import annotations

import pytest

from tailrace.cli.offset_words import assignment, moment
from tailrace.errors import OptionRefused


def test_time_that_cannot_be_read_is_refused_with_an_example_of_its_option() -> None:
    """The value is named once, and the example can be pasted."""
    with pytest.raises(OptionRefused) as raised:
        moment("nonsense", "--from")
    assert raised.value.what == "--from 'nonsense' is not a time"
    assert "--from 2026-11-20T10:00:00Z" in raised.value.then
    assert "on the command line" in (OptionRefused.__doc__ or "")


def test_time_without_a_zone_is_utc() -> None:
    """A machine's own zone does not move the position."""
    assert moment("2026-11-20T10:00:00") == moment("2026-11-20T10:00:00Z") == moment("2026-11-20T12:00:00+02:00")


@pytest.mark.parametrize("text", ["orders", "orders:0", "orders:x=1", "orders:0=-1"])
def test_position_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(OptionRefused) as raised:
        assignment(text)
    assert repr(text) in raised.value.what
    assert "orders:0=1200" in raised.value.then
