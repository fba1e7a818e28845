"""The expected output for given events, in plain Python; the tests compare with it."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tailrace.demo.proof import Expected, Place
from tailrace.kafka.reader import Message

BRIEF = 5  # as in pipeline.yaml


def identity(output: Message) -> str:
    """Return the name by which an output record is counted: its topic, id, length and number of words."""
    event = json.loads(output.value or b"null")
    return f"{output.topic}/{event['id']}/{event['length']}/{event['words']}"


def expected(records: Iterable[Message]) -> Expected:
    """Return an output for each event with content, and the places of all others."""
    result = Expected()
    for record in records:
        try:
            event = json.loads(record.value or b"")
        except ValueError:
            event = None
        if not isinstance(event, dict) or not str(event.get("content") or "").strip():
            result.rejected[Place.of(record)] += 1
            continue
        content = event["content"]
        words = len(content.split())
        topic = "rich-events.brief" if words <= BRIEF else "rich-events.long"
        result.outputs[f"{topic}/{event['id']}/{len(content)}/{words}"] += 1
    return result
