"""Which of Kafka's errors pass by themselves."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import persist, within
from tailrace.kafka.errors import is_retriable, translate


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH])
def test_a_request_is_retried_on_a_stale_leader_epoch(code: int) -> None:
    """Right after a topic was created, or its leader changed, the client or the broker is behind the other."""
    answers: list[KafkaException | int] = [KafkaException(KafkaError(code)), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return answer

    assert persist(ask, "asking") == 7


def test_a_permanent_error_is_raised_at_once() -> None:
    """There is no second attempt."""
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    with pytest.raises(KafkaFailed):
        persist(ask, "asking")
    assert len(asked) == 1


def test_a_request_is_retried_while_a_new_leader_does_not_know_its_end() -> None:
    """After the previous leader's death, the new one does not know for a moment what is committed."""
    answers = iter([KafkaError.OFFSET_NOT_AVAILABLE, None])

    def ask() -> int:
        refusal = next(answers)
        if refusal is not None:
            raise KafkaException(KafkaError(refusal))
        return 7

    assert persist(ask, "asking") == 7


def test_a_wrong_clock_is_named() -> None:
    """Kafka reports a timestamp, but the person on call needs to know which clock."""
    error = translate(KafkaException(KafkaError(KafkaError.INVALID_TIMESTAMP)), "writing a plan")
    assert "the clock of this machine" in str(error)


def test_a_call_that_never_returns_times_out() -> None:
    """A call that librdkafka holds ends in a timeout, which may be retried; errors and answers pass through."""
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
    """Refuse as a broker would."""
    raise KafkaException(KafkaError(KafkaError.PRODUCER_FENCED))
