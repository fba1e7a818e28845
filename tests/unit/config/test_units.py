"""Times and sizes as people write them."""

from __future__ import annotations

import pytest

from tailrace.config.units import seconds, size


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1s", 1.0), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), ("1.5", 1.5), (" 3 s ", 3.0), ("0", 0.0)],
)
def test_time_is_parsed(text: str, meant: float) -> None:
    """A bare number is seconds."""
    assert seconds(text) == meant


@pytest.mark.parametrize("text", ["", "s", "-1s", "1d", "1 s s", "nan", "inf", "1e3", "1MS", "٣s"])
def test_invalid_time_is_refused(text: str) -> None:
    """Invalid text is not guessed at."""
    assert seconds(text) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [("64MB", 64 * 10**6), ("1GiB", 2**30), ("1.5kB", 1500), ("10", 10), ("10 b", 10), ("2tib", 2**41)],
)
def test_size_is_parsed(text: str, meant: int) -> None:
    """Case is ignored; a bare number is bytes."""
    assert size(text) == meant


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1.5", "64M", "1e6"])
def test_invalid_size_is_refused(text: str) -> None:
    """Fractions of a byte are refused too."""
    assert size(text) is None
