"""Details of single topics, asked of brokers that may not know a new topic yet."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.kafka import topics
from tailrace.kafka.topics import setting


class Brokers:
    """Brokers that answer `answers` in turn, the last one for ever; a real race between two brokers takes luck."""

    def __init__(self, *answers: int | str) -> None:
        self.admin, self.asked, self._answers = self, 0, answers

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, Future[Any]]:
        """Answer the next question."""
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        future: Future[Any] = Future()
        if isinstance(answer, str):
            future.set_result({"cleanup.policy": SimpleNamespace(value=answer)})
        else:
            future.set_exception(KafkaException(KafkaError(answer)))
        return {resources[0]: future}


def test_setting_of_a_new_topic_is_asked_again_until_the_broker_knows_it() -> None:
    """Another broker, which was asked before, knew it already."""
    brokers: Any = Brokers(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_OR_PART, "compact")
    assert setting(brokers, "ledger", "cleanup.policy") == "compact"
    assert brokers.asked == 3


def test_setting_of_a_topic_that_never_appears_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit the topic is unknown."""
    monkeypatch.setattr(topics, "ANSWER_LIMIT", 0.1)
    with pytest.raises(errors.TopicUnknown, match=r"reading cleanup\.policy of the topic 'ledger'"):
        setting(Brokers(KafkaError.UNKNOWN_TOPIC_OR_PART), "ledger", "cleanup.policy")  # type: ignore[arg-type]


def test_setting_that_may_not_be_read_is_none() -> None:
    """Nothing is refused for want of a right to look."""
    assert setting(Brokers(KafkaError.TOPIC_AUTHORIZATION_FAILED), "ledger", "cleanup.policy") is None  # type: ignore[arg-type]


def test_setting_that_is_not_told_is_none() -> None:
    """Some services leave settings out of their answers."""
    assert setting(Brokers("compact"), "ledger", "retention.ms") is None  # type: ignore[arg-type]
