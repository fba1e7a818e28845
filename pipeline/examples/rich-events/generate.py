"""Generates endless events, reproducible by seed; some are invalid JSON, some have no content.

python generate.py --create-topics --rate 500 --seconds 30
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tailrace.demo.feed import Message, feed, main

TOPIC = "rich-events"
TOPICS = ("rich-events", "rich-events.brief", "rich-events.long")
BROKEN = 0.02
EMPTY = 0.02
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = ("door", "opened", "by", "the", "second", "guest", "while", "café", "lights", "went", "out", "twice")


def broken(value: bytes, chance: random.Random) -> bytes:
    """Return invalid JSON: the beginning of an event, or plain text."""
    if chance.random() < 0.5:
        return value[: chance.randrange(1, len(value))]
    return b"this is not JSON"


def messages(seed: int = 0) -> Iterator[Message]:
    """Yield events with increasing ids, keyed by id."""
    chance = random.Random(seed)
    for number in range(2**62):
        content = " ".join(chance.choices(WORDS, k=chance.randrange(1, 11)))
        if chance.random() < EMPTY:
            content = "  "
        at = (BEGINNING + timedelta(milliseconds=250 * number)).isoformat(timespec="milliseconds")
        event = {"id": number, "content": content, "at": at.replace("+00:00", "Z")}
        value = json.dumps(event, ensure_ascii=False).encode()
        if chance.random() < BROKEN:
            value = broken(value, chance)
        yield Message(key=str(number).encode(), value=value)


def generate(
    bootstrap: str,
    topic: str = TOPIC,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    count: int | None = None,
    seed: int = 0,
) -> int:
    """Write events at a rate, for a time or up to a number; return how many were acknowledged."""
    return feed(messages(seed), bootstrap, topic, rate=rate, seconds=seconds, count=count)


if __name__ == "__main__":
    main(messages, topic=TOPIC, creates=TOPICS)
