"""Development: a pipeline beside its editor, on a Kafka of its own, that starts again whenever a file changes."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace.admin.rejected import text_of
from tailrace.config import Format, Pipeline
from tailrace.config.file import Loaded, load
from tailrace.demo.feed import Message, create_topics, feed, kafka_at
from tailrace.demo.kept_session import KeptSession
from tailrace.driver.shutdown import Stop
from tailrace.errors import TailraceError
from tailrace.kafka.rejected_headers import HEADER_DETAIL, HEADER_REASON
from tailrace.previews.samples import of_project
from tailrace.stages.formats.known import sink_format
from tailrace.status.events import Emit

SAMPLES = "samples.py"
SERVERS = "TAILRACE_KAFKA__BOOTSTRAP_SERVERS"
_WATCHED = frozenset({".py", ".yaml", ".yml", ".avsc", ".json"})
_LOOK = 0.1
_SHOWN = 5  # records a second that are shown
_LONGEST = 160  # characters of a record

Run = Callable[..., None]


def changed(folder: Path) -> dict[Path, float]:
    """Return when each of the folder's own files was changed last."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _WATCHED and path.is_file() and not path.name.startswith("test_"):
            found[path] = path.stat().st_mtime
    return found


@dataclass
class Development:
    """A pipeline's file, run again and again on one Kafka."""

    file: Path
    servers: str
    run: Run
    say: Callable[[str], None]
    fail: Callable[[TailraceError], None]
    rate: float = 10.0
    ended: threading.Event = field(default_factory=threading.Event)
    kept: KeptSession = field(default_factory=KeptSession)
    _stop: Stop | None = None
    _fed: set[str] = field(default_factory=set)
    _shown: dict[str, Callable[[Any], str]] = field(default_factory=dict)

    def end(self, reason: str) -> None:
        """End it, after the batch in progress."""
        self.ended.set()
        if self._stop is not None:
            self._stop(reason)

    def serve(self, emit: Emit) -> None:
        """Run the pipeline, and again with each change, until it is ended."""
        try:
            self._serve(emit)
        finally:
            self.kept.close()

    def _serve(self, emit: Emit) -> None:
        while not self.ended.is_set():
            seen, self._stop = changed(self.file.parent), Stop()
            if self.ended.is_set():  # by a signal between the two lines above
                return
            watch = threading.Thread(target=self._watch, args=[seen, self._stop], daemon=True)
            watch.start()
            try:
                self._once(emit, self._stop)
            except TailraceError as error:
                self.kept.failed(error)
                self.fail(error)
                self.say("waiting for a change")
                self._stop.event.wait()
            self._stop("the next run")
            watch.join()

    def _once(self, emit: Emit, stop: Stop) -> None:
        loaded = load(self.file, {**os.environ, SERVERS: self.servers})
        pipeline = here(loaded.pipeline, self.servers)
        create_topics(self.servers, [*pipeline.source.topics, *pipeline.sink.named], 2)
        self._feed(loaded)
        self._tail(pipeline)
        self.run(pipeline, loaded.folder, emit=emit, stop=stop, spark=self.kept.of(pipeline, emit, stop))

    def _watch(self, seen: Mapping[Path, float], stop: Stop) -> None:
        while not stop.event.wait(_LOOK):
            now = changed(self.file.parent)
            if now != seen:
                names = sorted({path.name for path, _ in set(now.items()) ^ set(seen.items())})
                self.say(f"changed: {', '.join(names)}")
                stop(f"{', '.join(names)} changed")

    # -- what goes in, and what comes out --------------------------------------------------------------

    def _feed(self, loaded: Loaded) -> None:
        """Write samples to the first source topic, if there are any; once for each topic."""
        topics = loaded.pipeline.source.topics
        path = loaded.folder / SAMPLES
        if not topics or topics[0] in self._fed or not path.is_file():
            return
        self._fed.add(topics[0])
        self.say(f"writing {self.rate:g} records a second of {SAMPLES} to {topics[0]}")
        threading.Thread(target=self._write, args=[path, topics[0]], daemon=True).start()

    def _write(self, path: Path, topic: str) -> None:
        try:
            feed(samples(path), self.servers, topic, rate=self.rate, stop=self.ended)
        except StopIteration:
            self.say(f"{path.name}: all of its records are written")
        except Exception as error:  # the user's code may raise anything
            self.say(f"{path.name}: {type(error).__name__}: {error}; no more samples are written")

    def _tail(self, pipeline: Pipeline) -> None:
        """Show what comes out from now on; once for each topic."""
        for topic in (*pipeline.sink.named, pipeline.rejected_topic):
            new = topic not in self._shown
            # The schema may be another one in this run.
            self._shown[topic] = shown_by(pipeline, self.file.parent) if topic != pipeline.rejected_topic else rejected
            if new:
                create_topics(self.servers, [topic], 1)
                threading.Thread(target=self._show, args=[topic], daemon=True).start()

    def _described(self, topic: str, message: Any) -> str:
        try:
            return self._shown[topic](message)
        except Exception:  # written with an earlier schema, say, or not Avro at all
            return f"{text(message.key())} {text(message.value())}"

    def _show(self, topic: str) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "group.id": f"dev-{topic}", "isolation.level": "read_committed"}
        )
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            since, count = time.monotonic(), 0
            while not self.ended.is_set():
                message = consumer.poll(0.2)
                if time.monotonic() - since > 1:
                    if count > _SHOWN:
                        self.say(f"{topic}: and {count - _SHOWN} more")
                    since, count = time.monotonic(), 0
                if message is None or message.error() is not None:
                    continue
                count += 1
                if count <= _SHOWN:
                    self.say(f"{topic}: {self._described(topic, message)}"[:_LONGEST])
        except KafkaException as error:
            self.say(f"{topic} is no longer shown: {error}")
        finally:
            consumer.close()


def here(pipeline: Pipeline, servers: str) -> Pipeline:
    """Return the pipeline for this Kafka: one broker, which knows no users and no certificates."""
    ledger = pipeline.ledger.model_copy(update={"replication": 1})
    return pipeline.model_copy(update={"kafka": kafka_at(servers), "ledger": ledger})


def samples(path: Path) -> Iterator[Message]:
    """Return the records that the file's function `records` yields."""
    return itertools.starmap(Message, of_project(path))


def text(value: bytes | None) -> str:
    """Return bytes as text, if they are; otherwise in hexadecimal."""
    if value is None:
        return "null"
    found = text_of(value)
    return f"0x{value.hex()}" if found is None else found


def rejected(message: Any) -> str:
    """Describe a rejected record."""
    headers = dict(message.headers() or [])
    why = (text(headers[name]) for name in (HEADER_REASON, HEADER_DETAIL) if headers.get(name) is not None)
    return f"{text(message.key())} {text(message.value())} ({': '.join(why)})"


def shown_by(pipeline: Pipeline, folder: Path) -> Callable[[Any], str]:
    """Return what describes an output record; plain Avro is decoded."""
    sink = pipeline.sink
    if sink.format != Format.AVRO or sink.registry is not None:
        return lambda message: f"{text(message.key())} {text(message.value())}"
    made: Any = sink_format(sink, folder)
    from tailrace.stages.formats import avro  # needs fastavro, which is an extra: the line above says so

    decode = avro.decoder(made.schema, None)

    def show(message: Any) -> str:
        found = decode(message.value())
        return f"{text(message.key())} {json.dumps(found, default=str)}"

    return show
