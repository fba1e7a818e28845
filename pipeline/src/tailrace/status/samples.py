"""Samples for the status page: the last records that were delivered and rejected, if the configuration asks for them.

They are read back from Kafka, as a consumer of the sink would, by a thread with its own client: no batch waits for it.
Data may be sensitive, so there are none by default, fields can be hidden, and they are in memory only.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka.clients import TopicPartitions, client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import translate
from tailrace.kafka.rejected_headers import HEADER_DETAIL, HEADER_REASON
from tailrace.kafka.rights import Operation, on_topic
from tailrace.status.listening import Listening

log = logging.getLogger(__name__)

EVERY: Final = 10.0
HIDDEN: Final = "•••"
_LONGEST = 300  # characters of a key or a value
_SPAN = 20  # offsets before the end that are read, at least: markers of transactions have offsets too
_PARTITIONS = 8  # of a topic, those with the highest ends
_MOST_BYTES = 4_000_000  # of a topic's records
_READ_LIMIT = 3.0  # seconds
_FETCHED = 256
_DEAF = 3  # reads in a row in which the consumer has heard nothing, after which it is replaced

Samples = Mapping[str, Any]


def shown(content: bytes | None, hidden: Collection[str]) -> str | None:
    """Return a value as text, with hidden fields covered; with hidden fields, only JSON objects are shown."""
    if content is None:
        return None
    if not hidden:
        text = content.decode("utf-8", "backslashreplace")
    else:
        try:
            parsed = json.loads(content)
            text = json.dumps(_covered(parsed, hidden), ensure_ascii=False) if isinstance(parsed, dict | list) else ""
        except (ValueError, RecursionError):  # no JSON, or JSON of a depth that only an attacker writes
            text = ""
        if not text:
            return f"{len(content)} bytes, hidden: not JSON with fields"
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _covered(parsed: Any, hidden: Collection[str]) -> Any:
    if isinstance(parsed, dict):
        return {name: HIDDEN if name in hidden else _covered(value, hidden) for name, value in parsed.items()}
    return [_covered(each, hidden) for each in parsed] if isinstance(parsed, list) else parsed


class Sampler:
    """Reads samples regularly until it is stopped."""

    def __init__(self, pipeline: Pipeline, tell: Callable[[Samples], None]) -> None:
        self._pipeline = pipeline
        self._tell = tell
        self._count = pipeline.metrics.samples
        self._hidden = frozenset(pipeline.metrics.redact)
        self._kept: dict[str, tuple[TopicPartitions, list[Message]]] = {}  # by topic: its ends, and its last records
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace-samples", daemon=True)

    def start(self) -> None:
        """Start to read, if samples are configured."""
        if self._count and self._thread.ident is None:  # a run that starts over has one
            self._thread.start()

    def stop(self) -> None:
        """Stop reading, and wait up to 2 s for the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(2)

    def _run(self) -> None:
        cluster, listening = Cluster(self._pipeline.kafka), Listening(_options(self._pipeline), _DEAF)
        delivered = [topic for topic in self._pipeline.sink.named if topic != self._pipeline.rejected_topic]
        try:
            while not self._stop.is_set():
                self._tell(
                    {
                        "at": time.time(),
                        "delivered": self._sampled(cluster, listening, delivered),
                        "rejected": self._sampled(cluster, listening, [self._pipeline.rejected_topic]),
                    }
                )
                self._stop.wait(EVERY)
        except Exception:
            log.exception("reading samples failed")
        finally:
            listening.close()

    def _sampled(self, cluster: Cluster, listening: Listening, topics: list[str]) -> dict[str, Any]:
        """Return the last records of some topics, or why there are none."""
        try:
            found = [each for topic in topics for each in self._last(cluster, listening, topic)]
        except errors.TailraceError as problem:
            return {"records": [], "problem": problem.what}
        except KafkaException as problem:
            return {"records": [], "problem": problem.args[0].str()}
        found.sort(key=lambda message: message.timestamp()[1])
        return {"records": [self._record(each) for each in found[-self._count :]], "problem": ""}

    def _last(self, cluster: Cluster, listening: Listening, topic: str) -> list[Message]:
        places = [(topic, number) for number in range(cluster.topics().get(topic, 0))]
        ends = cluster.latest(places, committed=True)
        if topic in self._kept and self._kept[topic][0] == ends:
            return self._kept[topic][1]
        highest = sorted((place for place in places if ends[place]), key=lambda place: -ends[place])[:_PARTITIONS]
        if not highest:
            return []
        first = cluster.earliest(highest)
        span = self._count + _SPAN
        starts = {place: max(first[place], ends[place] - span) for place in highest}
        consumer = listening.consumer
        consumer.assign([TopicPartition(*place, start) for place, start in starts.items()])
        waiting, found, limit, size = set(highest), list[Message](), time.monotonic() + _READ_LIMIT, 0
        try:
            while waiting and size < _MOST_BYTES and time.monotonic() < limit and not self._stop.is_set():
                for message in consumer.consume(_FETCHED, 0.1):
                    problem = message.error()
                    if problem is None:
                        found.append(message)
                        size += len(message)
                    elif problem.code() == KafkaError._PARTITION_EOF:
                        waiting.discard((topic, message.partition() or 0))
                    elif not problem.retriable():
                        doing, rights = f"reading samples of {topic!r}", [on_topic(Operation.READ, topic)]
                        raise translate(problem, doing, rights=rights)
        finally:
            consumer.unassign()
        heard = bool(found) or waiting != set(highest)
        listening.heard(heard)
        if not heard:
            return []
        self._kept[topic] = ends, found
        return found

    def _record(self, message: Message) -> dict[str, Any]:
        headers = dict(message.headers() or ())
        why = [_text(headers.get(name)) for name in (HEADER_REASON, HEADER_DETAIL)]
        # A detail may quote the record, so it is hidden with the fields.
        reason = ": ".join(filter(None, why[:1] if self._hidden else why))
        return {
            "at": message.timestamp()[1] / 1000,
            "place": f"{message.topic()}-{message.partition()}",
            "offset": message.offset(),
            "key": shown(_bytes(message.key()), ()) if not self._hidden else None,
            "value": shown(_bytes(message.value()), self._hidden),
            "reason": reason[:_LONGEST],
        }


def _bytes(content: object) -> bytes | None:
    return content.encode() if isinstance(content, str) else content if isinstance(content, bytes) else None


def _text(content: object) -> str:
    return (_bytes(content) or b"").decode("utf-8", "backslashreplace")


def _options(pipeline: Pipeline) -> dict[str, Any]:
    return client_options(pipeline.kafka) | {
        "group.id": f"tailrace.{pipeline.pipeline}.samples",  # never joined: the partitions are assigned
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "latest",
        "isolation.level": "read_committed",
        "fetch.message.max.bytes": 65_536,
        "queued.max.messages.kbytes": 4_096,
    }
