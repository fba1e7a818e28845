"""How librdkafka's clients are configured, and how they are asked: with limits, and again while an error passes.

Spark's source reads with Java's client; `java_client` translates the connection's options for it.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tailrace.config import Kafka
from tailrace.kafka.errors import code_of, is_denied, is_retriable, translate
from tailrace.kafka.rights import Right

T = TypeVar("T")
TopicPartitions = dict[tuple[str, int], int]

ANSWER_LIMIT = 15.0  # seconds until a broker that does not answer is unreachable
SHORT_TRY = 5.0


def client_options(kafka: Kafka) -> dict[str, Any]:
    """The options of the connection for a client of librdkafka."""
    return {
        "bootstrap.servers": kafka.bootstrap_servers,
        # Undocumented, but without it a new producer waits half a second in one start of four.
        "enable.sparse.connections": False,
        "reconnect.backoff.ms": 10,
        # Otherwise, when all connections are lost at once, librdkafka 2.16.0 forgets its brokers and the requests that
        # wait for them: a transaction that was adding its marker then waits for ever, whatever its limit.
        "metadata.recovery.strategy": "none",
        "log_level": 2,
        **kafka.options,
    }


def committed(
    consumer: Consumer, places: Sequence[TopicPartition], doing: str, rights: Sequence[Right], limit: float = 60.0
) -> list[TopicPartition]:
    """A group's offsets. Asked in short tries: that the group is denied, the client tells between them only."""

    def ask() -> list[TopicPartition]:
        try:
            return consumer.committed(list(places), timeout=min(SHORT_TRY, limit))
        except KafkaException:
            heard = consumer.poll(0)
            problem = heard.error() if heard is not None else None
            if problem is not None and is_denied(problem):
                raise KafkaException(problem) from None
            raise

    return persist(ask, doing, limit, rights)


def within(limit: float, doing: str, act: Callable[[], T]) -> T:
    """Do what librdkafka may hold beyond any limit; after ours it is left alone, for it cannot be taken back.

    Adding offsets to a transaction waits for the group's coordinator, whatever time it is given
    (librdkafka's issue 5456). Where that broker has gone it may wait until some other connection changes (5511).
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            answer.set_result(act())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="tailrace-within", daemon=True).start()
    try:
        return answer.result(limit)
    except concurrent.futures.TimeoutError:
        what = f"{doing}: no answer within {limit:.0f} s"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, what)) from None


def add_offsets(producer: Producer, places: Sequence[TopicPartition], group: object, limit: float, doing: str) -> None:
    """Put a group's offsets into a transaction. Where a record breaks it meanwhile, the error is that record's.

    librdkafka says then at first only that it is in the wrong state, and how it came there when it is asked again.
    """

    end = time.monotonic() + limit

    def add() -> None:
        try:
            producer.send_offsets_to_transaction(list(places), group, limit)
        except KafkaException as error:
            # After the limit nobody waits for the answer: this must not touch whatever the producer does by then.
            if code_of(error) == KafkaError._STATE and time.monotonic() < end:
                producer.send_offsets_to_transaction(list(places), group, limit)
            raise

    within(limit, doing, add)


def persist(question: Callable[[], T], doing: str, limit: float = ANSWER_LIMIT, rights: Sequence[Right] = ()) -> T:
    """Ask until there is an answer, while the refusals are of the kind that passes."""
    end = time.monotonic() + limit
    while True:
        try:
            return question()
        except KafkaException as error:
            if not is_retriable(error) or time.monotonic() > end:
                raise translate(error, doing, rights=rights) from error
            time.sleep(0.02)
