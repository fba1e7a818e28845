"""The tests' load generator and checker, run in a pod near the brokers: clients that know nothing of Tailrace.

    hand.py feed tweets FIRST RATE COUNT     write COUNT records; 0: until standard input ends
    hand.py count tweets hashtags REJECTED   read everything that is committed, and compare
    hand.py silence hashtags SINCE           the longest time between two records since then, in milliseconds

It derives the expected output from the input independently. The last line is JSON. client.json, in the same folder,
holds the connection.
"""

from __future__ import annotations

import calendar
import io
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

CLIENT = json.loads(Path(__file__).with_name("client.json").read_text(encoding="utf-8"))
TWEETS = Path("/opt/pipeline/tweet.avsc")  # in the example's image
BAD = b"\xff\xff\xff"
BAD_EVERY = 97
BEGINNING = 1_767_225_600  # 2026-01-01T00:00:00Z
STEP = 0.05  # seconds of event time from one word to the next
WINDOW, DELAY = 10, 5
LIMIT = 120.0


def tweet(number: int, schema: Any) -> bytes:
    """Return a tweet with zero to two hashtags; one in BAD_EVERY is not a tweet at all."""
    if number % BAD_EVERY == BAD_EVERY - 1:
        return BAD
    tags = [f"Tag{number % 7}", "Twice"][: number % 3]
    row = {"id": number, "user": f"user-{number % 50}", "text": " ".join(tags), "lang": "en", "hashtags": tags}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {**row, "created_at": BEGINNING * 1000 + number})
    return out.getvalue()


def word(number: int, _: Any) -> bytes:
    """Return a word with an event time that is later than the previous word's."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(BEGINNING + number * STEP))
    return json.dumps({"at": f"{at}Z", "word": f"w{number % 3}"}).encode()


def feed(topic: str, first: int, rate: float, count: int) -> dict[str, int]:
    """Write the records; exit with an error unless all are acknowledged."""
    made, schema = (tweet, fastavro.schema.load_schema(str(TWEETS))) if topic == "tweets" else (word, None)
    producer = Producer({**CLIENT, "enable.idempotence": True, "linger.ms": 20, "delivery.timeout.ms": 300_000})
    acknowledged, failed, over = 0, [], threading.Event()

    def delivered(error: Any, _: Message) -> None:
        nonlocal acknowledged
        acknowledged += error is None
        failed.extend([str(error)] if error is not None else [])

    if not count:
        threading.Thread(target=_end_of_input, args=(over,), daemon=True).start()
    started, number = time.monotonic(), 0
    while not over.is_set() and (not count or number < count):
        # One partition for the words, so that they are in the order of their times.
        where = 0 if topic == "words" else -1
        key = f"user-{(first + number) % 50}".encode()
        while True:
            try:
                producer.produce(topic, made(first + number, schema), key, where, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        number += 1
        producer.poll(0)
        over.wait(max(0.0, started + number / rate - time.monotonic()))
    producer.flush(LIMIT * 3)
    if failed or acknowledged != number:
        raise SystemExit(f"{number} written, {acknowledged} acknowledged; {failed[:3]}")
    return {"sent": number}


def _end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def read(topic: str) -> Iterator[Message]:
    """Yield everything that is committed now, from every partition."""
    consumer = Consumer(
        {**CLIENT, "group.id": "hand", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=LIMIT).topics[topic].partitions
        waiting = set(partitions)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        until = time.monotonic() + LIMIT
        while waiting:
            message = consumer.poll(1.0)
            if time.monotonic() > until:
                raise SystemExit(f"{topic}: {sorted(waiting)} were not read to their end in {LIMIT:.0f} s")
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.name() == "_PARTITION_EOF":
                waiting.discard(message.partition())
            elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
                raise SystemExit(f"{topic}: {error}")
    finally:
        consumer.close()


def place(message: Message) -> str:
    """Return a record's position; for a rejected record, its position in the source."""
    headers: dict[str, Any] = dict(message.headers() or [])
    if "tailrace.source.offset" in headers:
        return f"{headers['tailrace.source.partition'].decode()}/{headers['tailrace.source.offset'].decode()}"
    return f"{message.partition()}/{message.offset()}"


def count(source: str, sink: str, rejected: str) -> dict[str, int]:
    """Count lost, duplicated and unexpected records."""
    records = list(read(source))
    wanted: Counter[str] = Counter()
    if source == "tweets":
        schema = fastavro.schema.load_schema(str(TWEETS))
        for message in records:
            if message.value() == BAD:
                wanted[f"rejected {place(message)}"] += 1
                continue
            row: Any = fastavro.schemaless_reader(io.BytesIO(message.value() or b""), schema, None)
            wanted.update(f"{row['id']}#{position}" for position in range(len(row["hashtags"])))
    else:
        wanted = _windows([json.loads(message.value() or b"") for message in records])
    found: Counter[str] = Counter()
    outputs = list(read(sink))
    for message in outputs:
        key = (message.key() or b"").decode()
        found[key if source == "tweets" else f"{key}={json.loads(message.value() or b'')['count']}"] += 1
    bad = list(read(rejected))
    found.update(f"rejected {place(message)}" for message in bad)
    surplus = found - wanted
    return {
        "in": len(records),
        "out": len(outputs),
        "rejected": len(bad),
        "lost": sum((wanted - found).values()),
        "duplicated": sum(more for each, more in surplus.items() if each in wanted),
        "unexpected": sum(more for each, more in surplus.items() if each not in wanted),
    }


def silence(topic: str, since: int) -> dict[str, int]:
    """Count the records since then, and measure the longest gap between them, by their write times."""
    times = sorted(at for at in (message.timestamp()[1] for message in read(topic)) if at >= since)
    return {"records": len(times), "longest": max((b - a for a, b in itertools.pairwise(times)), default=0)}


def _windows(events: list[dict[str, str]]) -> Counter[str]:
    """Count the windows that ended at least DELAY before the latest event; the others are still state."""
    seconds = [_seconds(event["at"]) for event in events]
    latest = max(seconds, default=0)
    counts = Counter((at - at % WINDOW, event["word"]) for at, event in zip(seconds, events, strict=True))
    over = {key: number for key, number in counts.items() if key[0] + WINDOW <= latest - DELAY}
    return Counter({f"{start}/{word}={number}": 1 for (start, word), number in over.items()})


def _seconds(at: str) -> int:
    return calendar.timegm(time.strptime(at, "%Y-%m-%dT%H:%M:%SZ"))


if __name__ == "__main__":
    act, *given = sys.argv[1:]
    if act == "feed":
        said = feed(given[0], int(given[1]), float(given[2]), int(given[3]))
    else:
        said = count(*given) if act == "count" else silence(given[0], int(given[1]))
    print(json.dumps(said))  # noqa: T201
