"""Which of Kafka's refusals pass by themselves."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import KafkaFailed
from tailrace.kafka import persist


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_who_has_heard_of_another_leader_is_asked_again(code: int) -> None:
    """Right after a topic was made, or its leader has changed, the client or the broker is behind the other."""
    answers: list[KafkaException | int] = [KafkaException(KafkaError(code)), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return answer

    assert persist(ask, "asking") == 7


def test_what_does_not_pass_is_said_at_once() -> None:
    """The first refusal is the answer."""
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    with pytest.raises(KafkaFailed):
        persist(ask, "asking")
    assert len(asked) == 1
