"""Load generator that writes records to Kafka at a steady rate, shared by the examples.

An example supplies an iterator of messages determined by a seed; this module writes them to Kafka, as a function and
as a script's `main`. The producer is idempotent, so a retry never makes a duplicate that the proof would count.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from confluent_kafka import Producer

from tailrace.config import Kafka
from tailrace.errors import KafkaFailed
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.signals import on_signals

TICK = 0.01  # seconds between two turns of the pacing loop
BURST = 2_000  # maximum records in one turn
FLUSH_LIMIT = 60.0
PARTITIONS = 4


class Message(NamedTuple):
    """A record to write; Kafka chooses the partition by the key."""

    key: bytes | None
    value: bytes | None


def feed(
    messages: Iterator[Message],
    bootstrap: str,
    topic: str,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    count: int | None = None,
    stop: threading.Event | None = None,
) -> int:
    """Write until the time is over, the number is reached or `stop` is set; return how many were acknowledged.

    Without a rate, write as fast as Kafka accepts. In each case everything written is flushed.
    """
    stop = stop or threading.Event()
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {
            **client_options(kafka_at(bootstrap)),
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # Java's
            "linger.ms": 5,
        }
    )
    began = time.monotonic()
    sent = 0
    while not stop.is_set() and not failed:
        elapsed = time.monotonic() - began
        if seconds is not None and elapsed >= seconds:
            break
        turn = min(due(elapsed, rate) - sent if rate is not None else BURST, BURST)
        turn = turn if count is None else min(turn, count - sent)
        if count is not None and sent >= count:
            break
        for _ in range(turn):
            _produce(producer, topic, next(messages), delivered)
        sent += max(turn, 0)
        producer.poll(0)
        if rate is not None:
            stop.wait(TICK)
    left = producer.flush(FLUSH_LIMIT)
    if failed or left:
        raise KafkaFailed(
            f"{len(failed)} of {sent} records for topic {topic!r} were refused, and {left} not acknowledged within"
            f" {FLUSH_LIMIT:.0f} s{f'; the first: {failed[0]}' if failed else ''}",
            kept="the other records are in the topic",
            then=f"check that {topic!r} exists and that the broker is up",
        )
    return sent


def kafka_at(bootstrap: str) -> Kafka:
    """Return a connection to the brokers at an address, without other options."""
    return Kafka.model_validate({"bootstrap.servers": bootstrap})


def due(elapsed: float, rate: float) -> int:
    """Return how many records should have been written after `elapsed` seconds."""
    return int(elapsed * rate)


def _produce(producer: Producer, topic: str, message: Message, delivered: Callable[[object, object], None]) -> None:
    while True:
        try:
            producer.produce(topic, message.value, key=message.key, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.1)


def create_topics(bootstrap: str, topics: Iterable[str], partitions: int = PARTITIONS) -> None:
    """Create the topics that do not exist yet."""
    cluster = Cluster(kafka_at(bootstrap))
    for topic in topics:
        cluster.ensure(topic, partitions, -1, {})


def count_of(bootstrap: str, topic: str) -> int:
    """Return the topic's offset count, which is its record count if no transaction wrote to it."""
    cluster = Cluster(kafka_at(bootstrap))
    places = [(topic, number) for number in range(cluster.require([topic], "topic")[topic])]
    return sum(cluster.latest(places).values()) - sum(cluster.earliest(places).values())


def main(
    messages: Callable[[int], Iterator[Message]],
    *,
    topic: str,
    creates: Sequence[str] = (),
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a generator as a script. SIGTERM and Ctrl-C flush the records and end it."""
    parser = argparse.ArgumentParser(description=f"Write the example's input to Kafka, by default to {topic}.")
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", default=topic)
    parser.add_argument("--rate", type=float, help="records per second; by default as fast as Kafka accepts")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--count", type=int, help="stop after this many records")
    parser.add_argument("--seed", type=int, default=0, help="the same records for the same seed")
    parser.add_argument("--create-topics", action="store_true", help=f"create {', '.join(creates)} where missing")
    parser.add_argument("--while-stdin", action="store_true", help="stop when standard input is closed")
    chosen = parser.parse_args(arguments)
    stop = threading.Event()
    on_signals(lambda _: stop.set())
    if chosen.while_stdin:
        threading.Thread(target=_stop_with_stdin, args=(stop,), daemon=True).start()
    if chosen.create_topics:
        create_topics(chosen.bootstrap, creates)
    written = feed(
        messages(chosen.seed),
        chosen.bootstrap,
        chosen.topic,
        rate=chosen.rate,
        seconds=chosen.seconds,
        count=chosen.count,
        stop=stop,
    )
    sys.stdout.write(json.dumps({"topic": chosen.topic, "written": written, "seed": chosen.seed}) + "\n")


def _stop_with_stdin(stop: threading.Event) -> None:
    # The parent process holds the other end: however it ends, the generator ends too.
    sys.stdin.read()
    stop.set()
