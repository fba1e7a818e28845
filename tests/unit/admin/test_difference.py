"""Two outputs are matched by key and value, then by key; records near the ends of the range are no differences."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tailrace.admin import difference
from tailrace.admin.difference import SAMPLES, Difference, Entry, Sample, compare, pair


def entry(text: str) -> Entry:
    """Return the record that `key=value` names; `?` marks one near an end, `-` no key and `0` no value."""
    key, _, value = text.removeprefix("?").partition("=")
    return Entry(
        None if key == "-" else key.encode(), None if value == "0" else value.encode(), not text.startswith("?")
    )


@pytest.mark.parametrize(
    ("live", "shadow", "expected"),
    [
        ("", "", (0, 0, 0, 0, 0, 0)),
        ("a=1 b=2", "b=2 a=1", (2, 2, 2, 0, 0, 0)),
        ("a=1", "a=2", (1, 1, 0, 1, 0, 0)),
        ("a=1 b=2", "a=1", (2, 1, 1, 0, 1, 0)),
        ("a=1", "a=1 b=2", (1, 2, 1, 0, 0, 1)),
        ("a=1 a=1", "a=1", (2, 1, 1, 0, 1, 0)),
        ("a=1 a=2", "a=2 a=3", (2, 2, 1, 1, 0, 0)),
        # Without a key, nothing says which record became which.
        ("-=1", "-=2", (1, 1, 0, 0, 1, 1)),
        ("-=1 -=1", "-=1 -=1", (2, 2, 2, 0, 0, 0)),
        # No value and an empty one are two values.
        ("a=0", "a=", (1, 1, 0, 1, 0, 0)),
        # A record near an end may match, and is no difference otherwise.
        ("?a=1", "", (0, 0, 0, 0, 0, 0)),
        ("?a=1", "?b=2", (0, 0, 0, 0, 0, 0)),
        ("?a=1", "?a=1", (0, 0, 0, 0, 0, 0)),
        ("?a=1", "a=1", (0, 1, 1, 0, 0, 0)),
        ("a=1", "?a=2", (1, 0, 0, 1, 0, 0)),
        ("a=1 ?a=1", "a=1", (1, 1, 1, 0, 0, 0)),
        ("?a=1 b=1", "c=1", (1, 1, 0, 0, 1, 1)),
    ],
)
def test_outputs_are_counted(live: str, shadow: str, expected: tuple[int, ...]) -> None:
    """Live and shadow records, equal, different, only in live, only in shadow."""
    found = compare(map(entry, live.split()), map(entry, shadow.split()))
    counts = (found.live, found.shadow, found.equal, found.different, found.only_live, found.only_shadow)
    assert counts == expected
    assert found.none == (sum(expected[3:]) == 0)


def test_pairs_count_each_record_once() -> None:
    """For all small counts: what is matched and what is left is what was there, and one side has nothing left."""
    for counts in itertools.product(range(4), repeat=4):
        matched, left = pair(counts)
        assert all(0 <= rest <= count for rest, count in zip(left, counts, strict=True))
        live, shadow = sum(counts[:2]) - sum(left[:2]), sum(counts[2:]) - sum(left[2:])
        assert live == shadow >= matched >= max(counts[0] - left[0], counts[2] - left[2])
        assert not (sum(left[:2]) and sum(left[2:]))


def test_samples_name_what_differs() -> None:
    """A few of each kind, with the values of both outputs, cut where they are long."""
    live = [Entry(b"k%d" % n, b"1" * 500) for n in range(20)] + [Entry(b"gone", b"x")]
    shadow = [Entry(b"k%d" % n, b"2") for n in range(20)] + [Entry(None, b"new")]
    found = compare(live, shadow)
    assert Counter(each.kind for each in found.samples) == {"different": SAMPLES, "live": 1, "shadow": 1}
    assert Sample("live", "gone", "x", None) in found.samples
    assert Sample("shadow", None, None, "new") in found.samples
    assert {(each.live, each.shadow) for each in found.samples if each.kind == "different"} == {("1" * 120, "2")}


def test_large_outputs_are_compared_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are those of a comparison in memory, whatever fits into it, and in any order."""
    monkeypatch.setattr(difference, "_ROOM", 1000)
    dice = random.Random(7)
    records = [(b"k%d" % n, b"%d" % dice.randrange(9)) for n in range(2000)]
    changed = [(key, b"x" if n % 10 == 0 else value) for n, (key, value) in enumerate(records)][:-50]
    dice.shuffle(changed)
    found = compare((Entry(*each) for each in records), (Entry(*each) for each in changed))
    assert found == Difference(2000, 1950, 1755, 195, 50, 0, found.samples)
