"""Rejected records for display: their place, their reason, and their bytes made readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.config import Kafka
from tailrace.errors import OptionRefused
from tailrace.kafka.reader import Message, read
from tailrace.kafka.rejected_headers import (
    HEADER_AT,
    HEADER_DETAIL,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_PIPELINE,
    HEADER_REASON,
    HEADER_STAGE,
    HEADER_TOPIC,
)

NO_REASON = "–"
_OF_THE_SOURCE = frozenset({"decode", "process"})  # stages whose rejected value is the source record itself
_PLACE = re.compile(r"(\d+):(\d+)")


class Place(NamedTuple):
    """A rejected record's place in its topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True)
class Target:
    """A rejected topic, and its pipeline if known."""

    kafka: Kafka
    topic: str
    pipeline: str | None

    def every(self) -> Iterator[Message]:
        """Yield all records in the topic."""
        return read(self.kafka, self.topic)

    def records(self) -> Iterator[Message]:
        """Yield the pipeline's records in the topic, which it may share with others."""
        for message in self.every():
            if self.pipeline is None or message.text(HEADER_PIPELINE) in {None, self.pipeline}:
                yield message


def split(words: Sequence[str] | None) -> tuple[Path | None, list[Place]]:
    """Split a command line's words into the file and the places of records."""
    matches = [(word, _PLACE.fullmatch(word)) for word in words or ()]
    files = [word for word, match in matches if match is None]
    if len(files) > 1:
        raise OptionRefused(
            f"{files[1]!r} is neither the first FILE nor a record as PARTITION:OFFSET",
            kept="nothing was read or written",
            then="`tailrace rejected list` shows the places of the records",
        )
    places = [Place(int(match[1]), int(match[2])) for _, match in matches if match is not None]
    return (Path(files[0]) if files else None), places


def when(message: Message) -> str:
    """Return when the record was rejected, in UTC."""
    text = message.text(HEADER_AT)
    milliseconds = int(text) if text is not None and text.isdecimal() else message.timestamp
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def reason(message: Message) -> str:
    """Return why the record was rejected."""
    return message.text(HEADER_REASON) or NO_REASON


def is_output(message: Message) -> bool:
    """Return whether the record is an output that could not be written; the source topic does not take it."""
    stage = message.text(HEADER_STAGE)
    return stage is not None and stage not in _OF_THE_SOURCE


def described(message: Message) -> dict[str, Any]:
    """Return a rejected record for JSON output, without its bytes."""
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "at": when(message),
        "pipeline": message.text(HEADER_PIPELINE),
        "stage": message.text(HEADER_STAGE),
        "reason": message.text(HEADER_REASON),
        "detail": message.text(HEADER_DETAIL),
        "source": {
            "topic": message.text(HEADER_TOPIC),
            "partition": number(message.text(HEADER_PARTITION)),
            "offset": number(message.text(HEADER_OFFSET)),
        },
    }


def number(text: str | None) -> int | None:
    """Return a header's value as a number; None if it is not one."""
    return int(text) if text is not None and text.isdecimal() else None


def readable(value: bytes | None, size: int) -> str:
    """Return bytes as text if they are text, else as a hex dump on its own lines."""
    if value is None:
        return "null"
    cut = f"\n  … {len(value)} bytes in total; --bytes {len(value)} shows them" if len(value) > size else ""
    text = text_of(value)
    if text is not None:
        return text.encode()[:size].decode("utf-8", "ignore") + cut
    lines = []
    for at in range(0, min(len(value), size), 16):
        part = value[at : min(at + 16, size)]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"\n  {at:08x}  {part.hex(' '):<47}  {printable}")
    return "".join(lines) + cut


def text_of(value: bytes) -> str | None:
    """Return bytes as text; None if they are none, or would change the terminal."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    # A record must not be able to move the reader's cursor.
    return text if all(letter.isprintable() or letter in "\n\t" for letter in text.replace("\r\n", "\n")) else None


def content(message: Message, size: int) -> dict[str, Any]:
    """Return a record's bytes for JSON output."""

    def shown(value: bytes | None) -> dict[str, Any] | None:
        if value is None:
            return None
        text = text_of(value)
        how = {"hex": value[:size].hex()} if text is None else {"text": text.encode()[:size].decode("utf-8", "ignore")}
        return {**how, "bytes": len(value)}

    headers = [{"name": name, "value": shown(value)} for name, value in message.headers]
    return {"headers": headers, "key": shown(message.key), "value": shown(message.value)}
