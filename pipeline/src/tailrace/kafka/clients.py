"""Configuration of librdkafka's clients, and requests with deadlines and retries.

Spark's source reads with the Java client; `java_client` translates the connection's options for it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tailrace.config import Kafka
from tailrace.kafka.errors import code_of, is_denied, is_fenced, is_retriable, translate
from tailrace.kafka.rights import Right

log = logging.getLogger(__name__)

T = TypeVar("T")
TopicPartitions = dict[tuple[str, int], int]

ANSWER_LIMIT = 15.0  # seconds without an answer until a broker counts as unreachable
LONGEST_REQUEST = 3600  # seconds; librdkafka's maximum
SHORT_TRY = 5.0
_TAKING = 60.0  # seconds for a transactional id
FREE_LIMIT = 5.0  # seconds; it usually takes a tenth of one
OFFSETS_BYTES = 200_000  # of one request; __consumer_offsets takes batches of 1 MB, if its max.message.bytes is default
_OFFSET_BYTES = 200  # of a stored offset besides its topic and its note: the group's name, and numbers
_SOON = 0.1  # seconds; 0 would mean without a limit
_CALLED = frozenset({KafkaError._CONFLICT, KafkaError._PREV_IN_PROGRESS})  # an earlier call has not ended
_CONNECTION = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "enable.sparse.connections",
        "reconnect.backoff.ms",
        "metadata.recovery.strategy",
        "log_level",
    }
)


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Return the connection's options for a librdkafka client."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        # Undocumented; without it one new producer in four waits half a second at its start.
        "enable.sparse.connections": False,
        "reconnect.backoff.ms": 10,
        # Otherwise, when all connections are lost at once, librdkafka 2.16.0 forgets its brokers and the requests that
        # wait for them: a transaction that was adding its marker then waits forever, whatever its limit.
        "metadata.recovery.strategy": "none",
        "log_level": 2,
        **kafka.options,
    }


def address(host: str, port: int) -> str:
    """Return an address as `bootstrap.servers` takes it: that of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def sendable(timestamp: int) -> int:
    """Return a timestamp in milliseconds as librdkafka can send it: 1 for 0, which it takes for the current time."""
    return timestamp or 1


def committed(
    consumer: Consumer,
    places: Sequence[TopicPartition],
    doing: str,
    rights: Sequence[Right],
    limit: float = 60.0,
    *,
    group_alone: bool = False,
) -> list[TopicPartition]:
    """Return a group's offsets. It asks in short tries, because the client reports a denied group only between them.

    A partition with an error fails the request: otherwise its offset would count as never committed. With
    `group_alone` it does not: the question is whether the group can be read.
    """

    def ask() -> list[TopicPartition]:
        try:
            found = consumer.committed(list(places), timeout=min(SHORT_TRY, limit))
        except KafkaException:
            heard = consumer.poll(0)
            problem = heard.error() if heard is not None else None
            if problem is not None and is_denied(problem):
                raise KafkaException(problem) from None
            raise
        for each in found:
            if each.error is not None and not group_alone:
                raise KafkaException(each.error)
        return found

    return persist(ask, doing, limit, rights)


def in_thread(thread: str, act: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Run a call in a thread for which the end of the process does not wait: a client may hang, or when it is freed."""
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=thread, daemon=True).start()
    return answer


def answered(future: concurrent.futures.Future[T], limit: float, doing: str) -> T:
    """Wait for a request's answer; after the limit, which may pass unheeded in librdkafka, there was none."""
    try:
        return future.result(limit)
    except concurrent.futures.TimeoutError:
        what = f"{doing}: no answer within {limit:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, what)) from None


def within(limit: float, doing: str, act: Callable[[], T]) -> T:
    """Run a call that may block beyond librdkafka's own limit; after ours, abandon it: it cannot be cancelled.

    Adding offsets to a transaction waits for the group's coordinator regardless of its timeout (librdkafka issue
    5456). If that broker has gone, it may wait until some other connection changes (issue 5511).
    """
    return answered(in_thread("tailrace-within", act), limit, doing)


def freed(what: str, free: Callable[[], object]) -> None:
    """Free a client; after a while leave it behind: librdkafka sometimes never returns from that (its issue 5434).

    What waited for it would hold its batch, or the end of its process. Nothing waits for what is left behind.
    """
    if sys.is_finalizing():  # no thread starts any more, and the process takes everything with it
        return
    try:
        within(FREE_LIMIT, f"freeing {what}", free)
    except KafkaException as error:
        log.warning("%s; it is left behind", error.args[0].str())


def taken(made: list[Producer], doing: str, limit: float, rights: Sequence[Right]) -> Producer:
    """Take the transactional id of the one producer in this list, which nothing else may hold, and return it.

    librdkafka goes on to ask for it after its limit. A producer that was left behind would take the id once the brokers
    answer again, perhaps from the next one: it is freed.
    """
    try:
        persist(lambda: made[0].init_transactions(limit), doing, _TAKING, rights)
    except BaseException:
        freed("a producer", made.clear)
        raise
    return made.pop()


def add_offsets(producer: Producer, places: Sequence[TopicPartition], group: object, limit: float, doing: str) -> None:
    """Add a group's offsets to a transaction; if a record has broken the transaction, raise that record's error.

    librdkafka first reports only that it is in the wrong state; asked again, it reports why. Many offsets take several
    requests, all within the limit; the transaction keeps them together.
    """

    end = time.monotonic() + limit

    def add(some: list[TopicPartition]) -> None:
        try:
            producer.send_offsets_to_transaction(some, group, limit)
        except KafkaException as error:
            # After the limit nothing waits for the answer: this must not disturb what the producer does by then.
            if code_of(error) == KafkaError._STATE and time.monotonic() < end:
                producer.send_offsets_to_transaction(some, group, limit)
            raise

    def add_all() -> None:
        for number, some in enumerate(requests(places, OFFSETS_BYTES)):
            if number and time.monotonic() >= end:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{doing}: {limit:.0f} s have passed"))
            add(some)

    within(limit, doing, add_all)


def requests(places: Sequence[TopicPartition], most: int) -> Iterator[list[TopicPartition]]:
    """Divide offsets into requests that the brokers can store, each as one batch of at most about this many bytes."""
    found: list[TopicPartition] = []
    size = 0
    for place in places:
        own = _OFFSET_BYTES + len(place.topic.encode()) + len((place.metadata or "").encode())
        if found and size + own > most:
            yield found
            found, size = [], 0
        found.append(place)
        size += own
    if found:
        yield found


def lost_id(producer: Producer, place: TopicPartition, group: object, limit: float, *, commit: bool) -> bool | None:
    """Ask whether another producer has taken the transactional id; only a transaction shows it.

    Commit it, with its offset in a group that nobody reads: if its end is sent twice, the first one may end a later
    transaction (docs/decisions/0015), which must not be aborted. Without `commit`, abort it: it may hold other records.
    None: no broker answered, and it may still be open. Ask again then before the producer's next transaction. The
    offset is added again first: ending a transaction of which the brokers know nothing ends the producer.
    """
    end = time.monotonic() + 2 * limit  # the second half is for ending what the first has begun

    def add() -> None:
        add_offsets(producer, [place], group, left(), "asking who owns a transactional id")

    def left() -> float:
        return max(_SOON, min(limit, end - time.monotonic()))

    try:
        try:
            producer.begin_transaction()
        except KafkaException as error:
            if code_of(error) not in {KafkaError._STATE, *_CALLED} and not error.args[0].txn_requires_abort():
                raise
            if commit and code_of(error) == KafkaError._CONFLICT and _resumed(producer, left()):
                return False
        try:
            _until(end, add, {KafkaError._PREV_IN_PROGRESS})
        except KafkaException as error:
            if is_fenced(error) or _may_pass(error, {KafkaError._PREV_IN_PROGRESS}):
                raise
        try:
            close = producer.commit_transaction if commit else producer.abort_transaction
            _until(end, lambda: told(producer, lambda: close(left())), _CALLED)
        except KafkaException as error:
            if not commit or not error.args[0].txn_requires_abort():
                raise
            _until(end, lambda: told(producer, lambda: producer.abort_transaction(left())), _CALLED)
    except KafkaException as error:
        return None if _may_pass(error, _CALLED) else is_fenced(error)
    return False


def _resumed(producer: Producer, limit: float) -> bool:
    """Return whether a commit that ran out of time has ended now: the producer refuses every other call until then."""
    try:
        told(producer, lambda: producer.commit_transaction(limit))
    except KafkaException as error:
        if is_fenced(error):
            raise
        return False
    return True


def _may_pass(error: KafkaException, also: Container[int]) -> bool:
    return (is_retriable(error) or code_of(error) in also) and not error.args[0].txn_requires_abort()


def _until(end: float, act: Callable[[], T], also: Container[int]) -> T:
    """Repeat a producer's call until then; one that was abandoned (`within`) refuses all others until it ends."""
    while True:
        try:
            return act()
        except KafkaException as error:
            if not _may_pass(error, also) or time.monotonic() > end:
                raise
            time.sleep(0.02)


def told(producer: Producer, act: Callable[[], T]) -> T:
    """Run a call of a producer that may run its callbacks; if a fatal error ended the producer, raise that error.

    confluent-kafka raises it in whatever call runs the callbacks, with the interpreter's error already set. The next
    callback then fails with a SystemError caused by it, or swallows it: a log handler that catches everything does.
    """
    try:
        return act()
    except SystemError as error:
        cause = error.__cause__
        lost = cause if isinstance(cause, KafkaException) else ended_by(producer)
        if lost is None:
            raise
        raise lost from error


def broken(producer: Producer) -> KafkaException | None:
    """Return why a producer's open transaction can only be aborted; None if it is not broken.

    What hands over records is told no more than that the state is wrong. Beginning a transaction tells the reason, and
    can do no harm: within one that is sound it is refused.
    """
    try:
        producer.begin_transaction()
    except KafkaException as error:
        return error if error.args[0].txn_requires_abort() else None
    return None


def ended_by(producer: Producer) -> KafkaException | None:
    """Ask a producer for the fatal error that ended it: a transactional one begins no transaction after that."""
    try:
        producer.begin_transaction()
    except KafkaException as error:
        if error.args[0].fatal():
            return error
        if code_of(error) == KafkaError._NOT_CONFIGURED:  # not transactional: only its log has the reason
            return KafkaException(KafkaError(KafkaError._FATAL, "the client's log says why"))
    return None


def fatal(producer: Producer, call: Callable[[], object]) -> KafkaException | None:
    """Run a call that runs a producer's callbacks; return the fatal error that ended the producer, if one came."""
    try:
        told(producer, call)
    except KafkaException as error:
        return error
    return None


def connection(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a producer's or consumer's options that every client of the same brokers needs."""
    return {name: value for name, value in options.items() if name in _CONNECTION or name.startswith(("ssl.", "sasl."))}


def persist(
    question: Callable[[], T],
    doing: str,
    limit: float = ANSWER_LIMIT,
    rights: Sequence[Right] = (),
    also: Container[int] = (),
) -> T:
    """Retry a request until it succeeds; raise the translated error if it is not retriable, or after the limit.

    `also` are codes that are retriable for this request only.
    """
    end = time.monotonic() + limit
    while True:
        try:
            return question()
        except KafkaException as error:
            again = is_retriable(error) or code_of(error) in also
            if not again or time.monotonic() > end:
                raise translate(error, doing, rights=rights) from error
            time.sleep(0.02)
