"""Records from a file: JSON lines, any other lines, or the samples of a project.

A line that is a JSON object with the key `value` or `value_base64`, and no keys but those of `KEYS`, is a record with
these fields. Any other line is the value of a record. A Python file has a function `records`, as `tailrace init` writes
it, that yields (key, value).
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.errors import ConfigInvalid
from tailrace.kafka.reader import Message

KEYS = frozenset({"key", "key_base64", "value", "value_base64", "headers", "topic", "partition", "offset", "timestamp"})
_VALUES = ("value", "value_base64")
_KEPT = "nothing was read or written"


def read(path: Path, topic: str, count: int) -> list[Message]:
    """Return the first records of a file; those that name no topic are of `topic`, in partition 0, one offset each."""
    now = int(time.time() * 1000)
    if path.suffix == ".py":
        return [Message(topic, 0, number, now, *pair) for number, pair in enumerate(_pairs(path, count))]
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read: {error.strerror}", kept=_KEPT, then="check the path") from None
    return [_record(line, f"{path}:{number + 1}", topic, number, now) for number, line in enumerate(lines[:count])]


def of_project(path: Path) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return the (key, value) pairs that the file's function `records` yields."""
    spec = importlib.util.spec_from_file_location("tailrace_samples", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pairs: Iterator[tuple[bytes | None, bytes | None]] = iter(module.records())
    return pairs


def _pairs(path: Path, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return the first pairs of a project's samples, or say what is wrong with the file."""
    try:
        pairs = [(key, value) for key, value in itertools.islice(of_project(path), count)]
        for each in itertools.chain.from_iterable(pairs):
            if not isinstance(each, bytes | None):
                raise TypeError(f"{each!r} is {type(each).__name__}, not bytes")
    except Exception as error:  # the user's code may raise anything
        raise ConfigInvalid(
            f"{path}: {type(error).__name__}: {error}",
            kept=_KEPT,
            then="define a function `records` that yields (key, value) as bytes or None",
        ) from error
    return pairs


def document(record: Message) -> dict[str, Any]:
    """Return a record as a line of a file has it."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **field("key", record.key),
        **field("value", record.value),
        "headers": listed(record.headers),
    }


def field(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as a text field, or in base64 under the name with `_base64` if they are no text."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def listed(headers: tuple[tuple[str, bytes | None], ...]) -> list[dict[str, str | None]]:
    """Return headers as a list, because a record may have several of one name."""
    return [{"key": name, **field("value", value)} for name, value in headers]


def _record(line: bytes, where: str, topic: str, number: int, now: int) -> Message:
    found = _object(line)
    if found is None or not any(name in found for name in _VALUES) or not found.keys() <= KEYS:
        return Message(topic, 0, number, now, None, line)
    try:
        return Message(
            str(found.get("topic", topic)),
            _number(found, "partition", 0, 2**31),
            _number(found, "offset", number, 2**63),
            _number(found, "timestamp", now, 2**53),
            _bytes(found, "key"),
            _bytes(found, "value"),
            _headers(found.get("headers")),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigInvalid(
            f"{where}: the record cannot be read: {type(error).__name__}: {error}",
            kept=_KEPT,
            then='write it as {"key": "…", "value": "…"}',
        ) from None


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(found: dict[str, Any], name: str, usual: int, limit: int) -> int:
    number = int(found.get(name, usual))
    if not 0 <= number < limit:
        raise ValueError(f"{name} is {number}, which Kafka does not have")
    return number


def _bytes(found: dict[str, Any], name: str) -> bytes | None:
    """Return a field's bytes: text as UTF-8, anything else in JSON as JSON text."""
    coded = found.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(coded, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}_base64: {error}") from None
    value = found.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _headers(found: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers from a mapping of names to texts, or from a list of objects with key and value."""
    if found is None:
        return ()
    if isinstance(found, dict):
        return tuple((str(name), _bytes({"value": value}, "value")) for name, value in found.items())
    return tuple((str(each["key"]), _bytes(each, "value")) for each in found)
