"""Stalled reads: whether to wait, fetch again, count offsets as lost, or give up.

librdkafka retries transient errors by itself and reports some of the others. The decision here rests on the leader's
own answers about the partition: its log start, the end that can be read, and the end of the log itself. An open
transaction hides what lies between these two ends. That is neither lost nor changed, so the read waits. Offsets beyond
the end count as lost only if most brokers answer, all of these name the same leader, and that leader repeats the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.gateway.consuming import Consumer
from tailrace.gateway.log_ends import CUT_OFF, KEPT, LogEnds
from tailrace.kafka.clients import ANSWER_LIMIT
from tailrace.kafka.errors import code_of, is_denied, is_retriable, translate
from tailrace.kafka.rights import Operation, on_topic
from tailrace.progress.plan import Range

_PATIENCE = 0.3  # seconds without progress before the leader is asked
_AGAIN = 0.5  # seconds between two questions
_GRACE = 3.0  # seconds that a leader's answer must hold before it ends the read: a new leader may know less at first
LOSS = 30.0  # seconds that it must hold before planned offsets count as lost, which is final
_QUESTION = 5.0
_DOCTOR = "tailrace doctor FILE"

_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_TRUNCATION = "log truncation"  # librdkafka's words, with the error code of an offset out of range
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_UNKNOWN_ID = 100  # Kafka's UNKNOWN_TOPIC_ID: the topic was deleted, and perhaps created again
_PASSING = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._IN_PROGRESS,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
    }
)


@dataclass(frozen=True)
class Lost:
    """Planned offsets that no longer exist; the read continues at their end."""

    span: Range


class Stall:
    """The state of a range whose records do not come."""

    def __init__(
        self,
        consumer: Consumer,
        log_end: LogEnds,
        span: Range,
        reset: bool,
        limit: float,
        clock: Callable[[], float] = time.monotonic,
        absent: dict[str, float] | None = None,
    ) -> None:
        """Begin; `log_end` asks for a log's own end, whatever its transactions.

        Ranges that are read one after another share `absent`: since when a topic has not existed.
        """
        self._consumer, self._log_end, self._span, self._reset = consumer, log_end, span, reset
        self._limit, self._clock = limit, clock
        self._absent = absent if absent is not None else {}
        self._place = f"{span.topic}-{span.partition}"
        self._doing = f"reading {self._place} from {span.start} to {span.end}"
        self._rights = [on_topic(Operation.READ, span.topic)]
        self._problem: KafkaException | KafkaError | None = None
        self._held, self._then = "", _DOCTOR
        self._furthest = span.start
        self._restart()

    def progress(self) -> None:
        """Reset the timers: the read has made progress, so its topic exists."""
        self._absent.pop(self._span.topic, None)
        self._restart()

    def _restart(self) -> None:
        self._since = self._clock()
        self._ask_at = self._since + _PATIENCE
        self._missing: float | None = None
        self._doubted = False  # whether a question had no answer while a loss was waited for

    def fetched(self, offset: int) -> None:
        """Take it for progress if librdkafka has fetched further, even if it hands over no record: all were aborted."""
        if offset > self._furthest:
            self._furthest = offset
            self.progress()

    @property
    def due(self) -> bool:
        """Whether it is time to ask the leader."""
        return self._clock() >= self._ask_at

    @property
    def missing(self) -> bool:
        """Whether the leader's last answer was that it does not have the planned offsets."""
        return self._missing is not None

    def look(
        self, position: int, failure: KafkaError | None, refusal: tuple[float, errors.TailraceError] | None
    ) -> Lost | bool:
        """Ask the leader if due. True: fetch again from the position; False: wait. Raise if the read cannot finish."""
        if failure is not None:
            self._judge(failure)
        answer: Lost | bool = False
        if self.due:
            answer = self._ask(position)
            self._ask_at = self._clock() + _AGAIN
        self._give_up(refusal)
        return answer

    def refuse_truncation(self, failure: KafkaError, position: int) -> None:
        """Refuse all that was fetched of a log that its new leader does not have.

        librdkafka tells it once, behind the records that it had fetched, and never again after a seek.
        """
        if failure.code() in _OUT_OF_RANGE and _TRUNCATION in failure.str().lower():
            raise errors.SourceChanged(
                f"{self._doing}: its log was truncated before offset {position} ({failure.str()})",
                kept=KEPT,
                then="nothing: the range is read again from its start, of the log that is there now",
            )

    def _judge(self, failure: KafkaError) -> None:
        code = failure.code()
        if code in _OUT_OF_RANGE or code in _UNKNOWN or code == _UNKNOWN_ID:
            if self._missing is None:
                self._ask_at = self._clock()
            return
        if not _passes(failure):
            raise self._translated(failure)
        self._problem = failure

    def _ask(self, position: int) -> Lost | bool:
        span, limit = self._span, min(_QUESTION, self._limit)
        try:
            low, high = self._consumer.watermarks(span.topic, span.partition, limit)
            top = high if high >= span.end else self._log_end(span.topic, span.partition, limit)
        except KafkaException as error:
            self._problem = error
            if code_of(error) in _UNKNOWN or code_of(error) == _UNKNOWN_ID:
                wrong = self._consumer.topic_error(span.topic, limit)
                if wrong is not None and is_denied(wrong):  # partitions of a hidden topic look unknown
                    raise self._translated(wrong) from error
                # All partitions of a topic go at once: the next range need not wait for as long again.
                self._missing = self._absent.setdefault(span.topic, self._clock())
                return self._end_if_it_stays(position, "it no longer exists")
            if is_denied(error):
                raise self._translated(error) from error
            self._doubt()
            return False
        self._absent.pop(span.topic, None)
        self._problem, self._held, self._then = None, f"the topic holds {low} to {top}", _DOCTOR
        if position < low:
            if not self._reset:
                raise errors.OffsetsOutOfRange(
                    f"{self._place}: the plan reads {span.start} to {span.end}, the next offset is {position}, "
                    f"and {self._held}",
                    kept=KEPT,
                    then=f"set source.on_data_loss: reset to continue at {low}, or restore the topic",
                )
            self._restart()
            return Lost(Range(span.topic, span.partition, position, min(low, span.end)))
        if top < span.end:
            return self._end_if_it_stays(position, self._held) or True
        if high < span.end:
            self._held = f"an open transaction of another producer begins at offset {high}"
            self._then = (
                "start the pipeline again: it waits for the end of that transaction; `kafka-transactions.sh "
                f"describe-producers --topic {span.topic} --partition {span.partition}` shows its producer"
            )
        self._missing = None
        return True

    def _end_if_it_stays(self, position: int, what: str) -> Lost | bool:
        """Give up the remaining range, or the read, if the answer has held for long enough."""
        self._missing = self._clock() if self._missing is None else self._missing
        if self._clock() - self._missing < min(LOSS if self._reset else _GRACE, self._limit / 2):
            return False
        if not self._agreed(what):
            return False
        if not self._reset:
            raise self._changed(what)
        self._restart()
        return Lost(Range(self._span.topic, self._span.partition, position, self._span.end))

    def _agreed(self, what: str) -> bool:
        """Ask all brokers whether the log ends too early; raise BrokerUnreachable if only this client says so.

        Its leader may be cut off from the others, for as long as that lasts. Or it may know no broker any more, and
        take each partition for unknown. The next attempt has new clients, and the driver waits for it to pass.
        """
        span = self._span
        try:
            end = self._log_end.agreed(span.topic, span.partition, min(_QUESTION, self._limit))
        except KafkaException as error:
            self._problem = error
            self._doubt()
            return False
        if end < span.end:
            return True
        raise errors.BrokerUnreachable(
            f"{self._place}: the plan reads {span.start} to {span.end}, and {what}, as this client's brokers say; but "
            f"the log ends at {end}, as the leader says that all brokers name",
            kept=KEPT,
            then=CUT_OFF,
        )

    def _doubt(self) -> None:
        """Begin again to wait until an answer has held: nobody knows what was true while a question had no answer.

        The time for that is given once more, so that a loss is not refused for one unanswered question.
        """
        if self._missing is not None and not self._doubted:
            self._since, self._doubted = self._clock(), True
        self._missing = None
        self._absent.pop(self._span.topic, None)

    def _changed(self, what: str) -> errors.SourceChanged:
        return errors.SourceChanged(
            f"{self._place}: the plan reads {self._span.start} to {self._span.end}, and {what}",
            kept=KEPT,
            then="restore the topic, or set source.on_data_loss: reset to continue without it",
        )

    def _give_up(self, refusal: tuple[float, errors.TailraceError] | None) -> None:
        waited = self._clock() - self._since
        if refusal is not None and refusal[0] >= self._since and waited >= min(ANSWER_LIMIT, self._limit):
            raise refusal[1]
        if waited < self._limit:
            return
        if self._problem is not None and not _passes(self._problem):
            raise self._translated(self._problem)
        what = f"{self._doing}: no progress for {waited:.0f} s"
        if self._problem is None:
            raise errors.KafkaFailed(f"{what}, and {self._held}", kept=KEPT, then=self._then)
        cause = self._problem.args[0] if isinstance(self._problem, KafkaException) else self._problem
        raise errors.BrokerUnreachable(f"{what} ({cause.str()})", kept=KEPT, then=_DOCTOR)

    def _translated(self, error: KafkaException | KafkaError) -> errors.TailraceError:
        return translate(error, self._doing, kept=KEPT, rights=self._rights)


def _passes(error: KafkaException | KafkaError) -> bool:
    """Return whether the same request may succeed a moment later."""
    return code_of(error) in _PASSING or is_retriable(KafkaException(error) if isinstance(error, KafkaError) else error)
