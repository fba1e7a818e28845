"""Generates endless tweets, reproducible by seed; about one in a hundred cannot be decoded.

python generate.py --create-topics --rate 2000 --seconds 30
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path

import fastavro

from tailrace.demo.feed import Message, feed, main

TOPIC = "tweets"
TOPICS = ("tweets", "hashtags")
BROKEN = 0.01
BEGINNING = 1_767_225_600_000  # 2026-01-01T00:00:00Z, in milliseconds
SCHEMA = fastavro.schema.load_schema(str(Path(__file__).with_name("tweet.avsc")))

TAGS = ("Kafka", "Spark", "Python", "Berlin", "Coffee", "ExactlyOnce", "DataEng", "Monday", "Café", "OpenSource")
WORDS = ("reading", "the", "log", "from", "its", "tail", "again", "and", "nothing", "is", "missing", "today")
LANGUAGES = ("en", "de", "fr", "pt", "ja")


def encode(tweet: dict[str, object]) -> bytes:
    """Encode the tweet in Avro's plain binary form."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, tweet)
    return out.getvalue()


def broken(value: bytes, chance: random.Random) -> bytes:
    """Return a value that cannot be decoded: empty, truncated, or a number that never ends."""
    kind = chance.randrange(3)
    if kind == 0:
        return b""
    if kind == 1:
        return value[: chance.randrange(1, len(value))]
    return b"\xff" * chance.randrange(1, 40)


def messages(seed: int = 0) -> Iterator[Message]:
    """Yield tweets with increasing ids, keyed by user."""
    chance = random.Random(seed)
    for number in range(2**62):
        tags = chance.choices(TAGS, k=chance.randrange(4))
        user = f"user-{chance.randrange(500)}"
        tweet = {
            "id": number,
            "user": user,
            "text": " ".join(chance.choices(WORDS, k=chance.randrange(3, 12)) + ["#" + tag for tag in tags]),
            "lang": chance.choice(LANGUAGES),
            "created_at": BEGINNING + number,
            "hashtags": tags,
        }
        value = encode(tweet)
        if chance.random() < BROKEN:
            value = broken(value, chance)
        yield Message(key=user.encode(), value=value)


def generate(
    bootstrap: str,
    topic: str = TOPIC,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    count: int | None = None,
    seed: int = 0,
) -> int:
    """Write tweets at a rate, for a time or up to a number; return how many were acknowledged."""
    return feed(messages(seed), bootstrap, topic, rate=rate, seconds=seconds, count=count)


if __name__ == "__main__":
    main(messages, topic=TOPIC, creates=TOPICS)
