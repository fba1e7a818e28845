"""Which of Kafka's refusals pass by themselves."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import persist, within
from tailrace.kafka.errors import is_retriable, translate


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


def test_a_leader_that_is_too_new_to_tell_its_end_is_asked_again() -> None:
    """After the death of another leader it does not know for a moment what is committed."""
    answers = iter([KafkaError.OFFSET_NOT_AVAILABLE, None])

    def ask() -> int:
        refusal = next(answers)
        if refusal is not None:
            raise KafkaException(KafkaError(refusal))
        return 7

    assert persist(ask, "asking") == 7


def test_a_wrong_clock_is_named() -> None:
    """Kafka speaks of a timestamp; whoever is woken by it needs to know which clock."""
    error = translate(KafkaException(KafkaError(KafkaError.INVALID_TIMESTAMP)), "writing a plan")
    assert "the clock of this machine" in str(error)


def test_what_never_returns_is_left_after_its_limit() -> None:
    """A call that librdkafka holds is a timeout, which passes; an error and an answer come through."""
    never = threading.Event()
    with pytest.raises(KafkaException) as caught:
        within(0.05, "adding", never.wait)
    assert is_retriable(caught.value)
    never.set()
    assert within(5, "adding", lambda: 7) == 7
    with pytest.raises(KafkaException) as caught:
        within(5, "adding", refuse)
    assert caught.value.args[0].code() == KafkaError.PRODUCER_FENCED


def refuse() -> None:
    """As a broker would."""
    raise KafkaException(KafkaError(KafkaError.PRODUCER_FENCED))
