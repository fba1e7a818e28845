"""A fatal error of a producer ends its task, whichever call learns of it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.gateway import producers
from tailrace.gateway.producers import Sender
from tailrace.kafka.clients import fatal

FENCED = KafkaException(KafkaError(KafkaError._FENCED, "a newer owner"))


def wrapped() -> None:
    """Raise as confluent-kafka does if another callback follows that of the fatal error."""
    raise SystemError("a callback returned a result with an exception set") from FENCED


def plain() -> None:
    """Raise as confluent-kafka does otherwise."""
    raise FENCED


@pytest.mark.parametrize("call", [plain, wrapped])
def test_fatal_error_is_found_in_either_form(call: object) -> None:
    """Other errors of the interpreter are not taken for one."""
    assert callable(call)
    assert fatal(call) is FENCED
    assert fatal(lambda: 1) is None

    def other() -> None:
        raise SystemError("something else")

    with pytest.raises(SystemError, match="something else"):
        fatal(other)


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

    monkeypatch.setattr(producers, "Producer", Producer)
    sender = Sender({}, "at-least-once")
    assert sender.flush(1.0) == 0
    with pytest.raises(errors.KafkaFailed, match="a newer owner"):
        sender.check()
