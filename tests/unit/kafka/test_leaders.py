"""When the brokers agree on a partition's leader."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.kafka import leaders
from tailrace.kafka.described_topics import Described
from tailrace.kafka.leaders import Leaders, same_ids


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


@pytest.mark.parametrize(
    ("told", "ids"),
    [
        ({1: "new", 2: "new", 3: "new"}, {"in": "new"}),
        ({1: "new", 2: "new", 3: None}, {"in": "new"}),
        ({1: "former", 2: "new", 3: "new"}, {}),
        ({1: "", 2: "new", 3: "new"}, {}),
        ({1: "", 2: "", 3: ""}, {}),
        ({1: "new", 2: None, 3: None}, {}),
    ],
)
def test_id_of_a_topic_is_what_most_brokers_tell_and_none_contradicts(
    monkeypatch: pytest.MonkeyPatch, told: dict[int, str | None], ids: dict[str, str]
) -> None:
    """One that lags knows the former topic, or none; None stands for a broker that does not answer."""

    def described(broker: int, instance: int, names: list[str], limit: float) -> list[Described]:
        told_by = told[broker]
        if told_by is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        error = 0 if told_by else KafkaError.UNKNOWN_TOPIC_OR_PART
        return [Described(name, told_by, 1 if told_by else 0, error) for name in names]

    monkeypatch.setattr(leaders, "described_by", described)
    assert same_ids(0, told, ["in"], 1.0) == ids
