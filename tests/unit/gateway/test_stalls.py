"""When a stalled read counts planned offsets as lost: only on answers that hold, and that the brokers agree on."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.gateway.consuming import Consumer
from tailrace.gateway.log_ends import LogEnds
from tailrace.gateway.stalls import LOSS, Lost, Stall
from tailrace.progress.plan import Range

PLANNED = Range("orders", 0, 90, 100)
NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT))
UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
Answer = int | KafkaException


class Brokers:
    """The leader that the read's clients ask, and what all brokers agree on; the time is the test's."""

    def __init__(self, said: Answer = 90, agreed: Answer | errors.TailraceError = 90) -> None:
        self.said, self.agreed_on, self.now = said, agreed, 0.0

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def watermarks(self, topic: str, partition: int, limit: float) -> tuple[int, int]:
        """Answer for the leader."""
        return 0, self(topic, partition, limit)

    def topic_error(self, topic: str, limit: float) -> None:
        """Answer that the topic may be described."""

    def __call__(self, topic: str, partition: int, limit: float) -> int:
        """Answer for the leader, whatever its transactions."""
        if isinstance(self.said, int):
            return self.said
        raise self.said

    def agreed(self, topic: str, partition: int, limit: float) -> int:
        """Answer for all brokers."""
        if isinstance(self.agreed_on, int):
            return self.agreed_on
        raise self.agreed_on

    def stall(
        self,
        span: Range = PLANNED,
        reset: bool = True,
        absent: dict[str, float] | None = None,
        limit: float = 1000.0,
    ) -> Stall:
        """Return a stall of a range."""
        ends = cast(LogEnds, self)
        return Stall(cast(Consumer, self), ends, span, reset, limit, self.clock, absent)

    def look(self, stall: Stall, now: float, said: Answer) -> Lost | bool:
        """Let the stall ask at this time."""
        self.now, self.said = now, said
        return stall.look(stall._span.start, None, None)


def test_end_that_all_brokers_repeat_is_a_loss() -> None:
    """It is one as soon as the answer has held for long enough."""
    brokers = Brokers()
    stall = brokers.stall()
    assert brokers.look(stall, 1, 90) is True
    assert brokers.look(stall, LOSS, 90) is True
    assert brokers.look(stall, LOSS + 2, 90) == Lost(PLANNED)


def test_end_that_only_a_leader_of_former_times_says_is_no_loss() -> None:
    """One that is cut off from the other brokers, and not from the clients, says it for as long as that lasts."""
    brokers = Brokers(agreed=100)
    stall = brokers.stall()
    brokers.look(stall, 1, 90)
    with pytest.raises(errors.BrokerUnreachable, match=r"orders-0: the plan reads 90 to 100.*but the log ends at 100"):
        brokers.look(stall, LOSS + 2, 90)


def test_topic_that_only_one_broker_does_not_know_is_not_lost() -> None:
    """A broker that was cut off before the topic was created does not know it."""
    brokers = Brokers(agreed=100)
    stall = brokers.stall()
    brokers.look(stall, 1, UNKNOWN)
    with pytest.raises(errors.BrokerUnreachable, match=r"it no longer exists, .*but the log ends at 100"):
        brokers.look(stall, LOSS + 2, UNKNOWN)


def test_topic_that_only_one_client_does_not_know_is_not_refused() -> None:
    """A client that has forgotten every broker says so of each topic; the driver ended."""
    brokers = Brokers(UNKNOWN, agreed=120)
    stall = brokers.stall(reset=False)
    brokers.look(stall, 10, UNKNOWN)
    with pytest.raises(errors.BrokerUnreachable, match="the log ends at 120"):
        brokers.look(stall, 20, UNKNOWN)


def test_brokers_that_contradict_each_other_are_not_believed() -> None:
    """The attempt fails, and the next one asks through new clients."""
    brokers = Brokers(agreed=errors.KafkaFailed("the brokers contradict each other"))
    stall = brokers.stall()
    brokers.look(stall, 1, 90)
    with pytest.raises(errors.KafkaFailed, match="contradict each other"):
        brokers.look(stall, LOSS + 2, 90)


def test_loss_waits_for_brokers_that_do_not_answer() -> None:
    """It is asked about again once the leader's answer has held for as long again."""
    brokers = Brokers(agreed=NO_ANSWER)
    stall = brokers.stall()
    brokers.look(stall, 1, 90)
    assert brokers.look(stall, LOSS + 2, 90) is True
    brokers.agreed_on = 90
    assert brokers.look(stall, LOSS + 3, 90) is True
    assert brokers.look(stall, 2 * LOSS + 4, 90) == Lost(PLANNED)


def test_loss_is_accepted_in_time_although_a_question_had_no_answer() -> None:
    """The second wait would end after the read has been given up, at each attempt."""
    brokers = Brokers()
    stall = brokers.stall(limit=60.0)
    brokers.look(stall, 1, 90)
    assert brokers.look(stall, 25, NO_ANSWER) is False
    assert brokers.look(stall, 26, 90) is True
    assert brokers.look(stall, 26 + LOSS, 90) == Lost(PLANNED)


@pytest.mark.parametrize("said", [90, UNKNOWN])
@pytest.mark.parametrize("reset", [True, False])
def test_answers_with_unanswered_questions_between_them_do_not_hold(said: Answer, reset: bool) -> None:
    """Two answers that are half a minute apart do not say what lies between them."""
    brokers = Brokers()
    stall = brokers.stall(reset=reset)
    brokers.look(stall, 0.4, said)
    for second in range(5, 30, 5):
        assert brokers.look(stall, second, NO_ANSWER) is False
    assert not isinstance(brokers.look(stall, LOSS + 2, said), Lost)


@pytest.mark.parametrize("reset", [True, False])
def test_topic_that_was_read_meanwhile_is_not_absent(reset: bool) -> None:
    """A range of it that got records has shown that it exists, so the next one waits again."""
    brokers, absent = Brokers(), dict[str, float]()
    first = brokers.stall(reset=reset, absent=absent)
    assert brokers.look(first, 0.4, UNKNOWN) is False
    first.progress()
    brokers.now = 40.0
    second = brokers.stall(Range("orders", 1, 0, 10), reset=reset, absent=absent)
    assert brokers.look(second, 40.4, UNKNOWN) is False


def test_topic_that_does_not_exist_is_waited_for_once() -> None:
    """Its other ranges are lost as soon as the first is."""
    brokers, absent = Brokers(agreed=-1), dict[str, float]()
    first = brokers.stall(absent=absent)
    brokers.look(first, 0.4, UNKNOWN)
    assert brokers.look(first, LOSS + 1, UNKNOWN) == Lost(PLANNED)
    other = Range("orders", 1, 0, 10)
    assert brokers.look(brokers.stall(other, absent=absent), LOSS + 2, UNKNOWN) == Lost(other)
