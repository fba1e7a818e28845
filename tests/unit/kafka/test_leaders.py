"""When the brokers agree on a partition's leader."""

from __future__ import annotations

import pytest

from tailrace.kafka.leaders import Leaders


@pytest.mark.parametrize(
    ("asked", "told", "agreed"),
    [
        (1, {1: 1}, True),
        (3, {1: 2, 2: 2, 3: 2}, True),
        (3, {2: 2, 3: 2}, True),
        (3, {1: 1, 2: 2, 3: 2}, False),
        (3, {1: 1, 2: None, 3: None}, False),
        (3, {1: None, 2: None}, True),
        (3, {1: 3, 2: 3}, False),
        (3, {1: -1, 2: -1, 3: -1}, False),
        (3, {1: 1}, False),
        (2, {1: 1}, False),
        (0, {}, False),
    ],
)
def test_brokers_agree_if_most_of_them_answer_and_none_contradicts(
    asked: int, told: dict[int, int | None], agreed: bool
) -> None:
    """One that is cut off from the others may be the only one that a client reaches. The leader has to answer, too."""
    assert Leaders(asked, told).agreed is agreed


def test_contradiction_names_what_each_broker_says() -> None:
    """So it shows which one is cut off."""
    assert str(Leaders(4, {2: None, 1: 1, 3: 3})) == (
        "broker 1 says 1, broker 2 says that it does not exist, broker 3 says 3, 1 of 4 do not answer"
    )
