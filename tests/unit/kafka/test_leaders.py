"""When the brokers agree on a partition's leader."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.kafka.leaders import Leaders


@pytest.mark.parametrize(
    ("asked", "told", "leader"),
    [
        (1, {1: 1}, 1),
        (3, {1: 2, 2: 2, 3: 2}, 2),
        (3, {2: 2, 3: 2}, 2),
        (3, {1: None, 2: None}, None),
    ],
)
def test_brokers_agree_if_most_of_them_answer_and_none_contradicts(
    asked: int, told: dict[int, int | None], leader: int | None
) -> None:
    """They may also agree that there is no such partition."""
    assert Leaders(asked, told).agreed("in-0", "all", "ask again") == leader


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (3, {1: 1, 2: 2, 3: 2}),
        (3, {1: 1, 2: None, 3: None}),
        (3, {1: 3, 2: 3}),
        (3, {1: -1, 2: -1, 3: -1}),
        (3, {1: 1}),
        (2, {1: 1}),
        (0, {}),
    ],
)
def test_brokers_that_do_not_agree_are_not_believed(asked: int, told: dict[int, int | None]) -> None:
    """One that is cut off from the others may be the only one that a client reaches. The leader has to answer, too."""
    with pytest.raises(errors.KafkaFailed, match="the brokers do not agree on which of them leads in-0: "):
        Leaders(asked, told).agreed("in-0", "all", "ask again")


def test_contradiction_names_what_each_broker_says() -> None:
    """So it shows which one is cut off."""
    assert str(Leaders(4, {2: None, 1: 1, 3: 3})) == (
        "broker 1 says 1, broker 2 says that it does not exist, broker 3 says 3, 1 of 4 do not answer"
    )
