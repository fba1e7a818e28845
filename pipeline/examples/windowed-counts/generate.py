"""Generates endless words, reproducible by seed, up to twenty seconds out of order; a few are invalid JSON.

python generate.py --create-topics --rate 500 --seconds 30
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tailrace.demo.feed import Message, feed, main

TOPIC = "words"
TOPICS = ("words", "word-counts")
BROKEN = 0.01
DISORDER = 20.0  # seconds; less than the pipeline's delay, so that no event comes too late
STEP = 0.2  # seconds of event time from one event to the next
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = {"en": ("yes", "no", "maybe"), "de": ("ja", "nein", "vielleicht"), "fr": ("oui", "non", "peut-être")}


def messages(seed: int = 0) -> Iterator[Message]:
    """Yield words with the time they were said, without a key."""
    chance = random.Random(seed)
    for number in range(2**62):
        at = BEGINNING + timedelta(seconds=number * STEP + chance.uniform(0, DISORDER))
        lang = chance.choice(tuple(WORDS))
        text = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        value = json.dumps({"at": text, "lang": lang, "word": chance.choice(WORDS[lang])}).encode()
        if chance.random() < BROKEN:
            value = value[: chance.randrange(1, len(value))]
        yield Message(key=None, value=value)


def generate(
    bootstrap: str,
    topic: str = TOPIC,
    *,
    rate: float | None = None,
    seconds: float | None = None,
    count: int | None = None,
    seed: int = 0,
) -> int:
    """Write words at a rate, for a time or up to a number; return how many were acknowledged."""
    return feed(messages(seed), bootstrap, topic, rate=rate, seconds=seconds, count=count)


if __name__ == "__main__":
    main(messages, topic=TOPIC, creates=TOPICS)
