"""Which of Kafka's errors pass by themselves."""

from __future__ import annotations

import re
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import persist, within
from tailrace.kafka.errors import invalid, is_retriable, translate


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


NOW = 1_700_000_000_000
DAY = 86_400_000


@pytest.mark.parametrize(
    ("times", "limits"),
    [
        ((NOW, NOW + 7_200_001), ["message.timestamp.after.max.ms=14400000"]),
        ((NOW - DAY, NOW), ["message.timestamp.before.max.ms=176400000"]),
        (
            (NOW - DAY, NOW + DAY),
            ["message.timestamp.after.max.ms=93600000", "message.timestamp.before.max.ms=176400000"],
        ),
        ((NOW, NOW + 1000), []),
    ],
)
def test_refused_timestamps_name_the_topics_limits(times: tuple[int, int], limits: list[str]) -> None:
    """The values are above what the rows need, with time to start again."""
    error = invalid(KafkaError(KafkaError.INVALID_TIMESTAMP), "out", times, NOW)
    assert re.findall(r"--entity-name out --add-config (\S+?=\d+)", error.then) == limits
    assert "column `timestamp`" in error.then
    assert "now it is 2023-11-14T22:13:20Z" in error.what


def test_rows_without_timestamps_of_their_own_have_those_of_a_wrong_clock() -> None:
    """The producer gave them the time of this machine."""
    assert "the clock of this machine" in invalid(KafkaError(KafkaError.INVALID_TIMESTAMP), "out", None, NOW).then


def test_invalid_rows_may_also_lack_a_key() -> None:
    """Brokers report several rows with wrong timestamps as they report a row without a key for a compacted topic."""
    error = invalid(KafkaError(KafkaError.INVALID_RECORD), "out", (NOW, 2**62), NOW)
    assert f"to {2**62} ms since 1970" in error.what
    assert "message.timestamp.after.max.ms" in error.then
    assert "a key, if the topic is compacted" in error.then
