"""A fatal error of a producer ends its task, whichever call learns of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tailrace import errors
from tailrace.gateway import sender as senders
from tailrace.gateway.sender import Sender
from tailrace.kafka.clients import fatal, told

FENCED = KafkaException(KafkaError(KafkaError._FENCED, "a newer owner", fatal=True))


def wrapped() -> None:
    """Raise as confluent-kafka does if another callback follows that of the fatal error."""
    raise SystemError("a callback returned a result with an exception set") from FENCED


def plain() -> None:
    """Raise as confluent-kafka does otherwise."""
    raise FENCED


class Client:
    """A producer of librdkafka that answers the question for its fatal error."""

    def __init__(self, answer: KafkaException | None) -> None:
        self._answer = answer

    def begin_transaction(self) -> None:
        """Answer."""
        if self._answer is not None:
            raise self._answer


def swallowed() -> None:
    """Raise as confluent-kafka does if another callback swallowed it."""
    raise SystemError("returned NULL without setting an exception")


@pytest.mark.parametrize("call", [plain, wrapped, swallowed])
def test_fatal_error_is_found_in_any_form(call: Callable[[], object]) -> None:
    """However the callbacks that follow treat it."""
    client: Any = Client(FENCED)
    assert fatal(client, call) is FENCED
    assert fatal(client, lambda: 1) is None
    with pytest.raises(KafkaException, match="a newer owner"):
        told(client, call)
    assert told(client, lambda: 1) == 1


def test_swallowed_fatal_error_of_a_producer_without_transactions_is_fatal_too() -> None:
    """It cannot say why, but it has ended."""
    error = fatal(Producer({"bootstrap.servers": "127.0.0.1:1"}), swallowed)
    assert error is not None
    assert error.args[0].code() == KafkaError._FATAL


@pytest.mark.parametrize("answer", [None, KafkaException(KafkaError(KafkaError._STATE, "in a transaction"))])
def test_other_errors_of_the_interpreter_are_not_taken_for_a_fatal_one(answer: KafkaException | None) -> None:
    """A producer that goes on was not ended."""
    client: Any = Client(answer)
    with pytest.raises(SystemError, match="without setting"):
        fatal(client, swallowed)


def test_fatal_error_ends_an_at_least_once_task_although_nothing_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of its records may be lost with it, so an empty queue does not prove that they were delivered."""

    class Producer:
        def __init__(self, options: object) -> None:
            self.options = options

        def flush(self, limit: float) -> int:
            wrapped()
            return 0

        def __len__(self) -> int:
            return 0

    monkeypatch.setattr(senders, "Producer", Producer)
    sender = Sender({}, "at-least-once")
    assert sender.flush(1.0) == 0
    with pytest.raises(errors.KafkaFailed, match="a newer owner"):
        sender.check()
