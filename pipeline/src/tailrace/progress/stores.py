"""External stores of the input offsets, from which a pipeline without a plan may begin.

The ledger remains the only source of truth about what was delivered. A store gets one write per batch, the offsets at
which the batch begins, after the ledger has the plan: so a fenced driver never writes to its store.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, TopicPartition

from tailrace.config import Pipeline, StoreKind
from tailrace.config.reference import load
from tailrace.errors import NotAuthorized, OffsetStoreUnusable
from tailrace.kafka.clients import client_options, committed
from tailrace.kafka.rights import Operation, on_group, on_topic
from tailrace.progress import predecessor
from tailrace.progress.marker import offsets_group
from tailrace.progress.positions import Place, Positions, from_document, to_document


class OffsetStore(Protocol):
    """A store of a pipeline's input offsets; `offsets.store: package.module:Class` names one of the user's.

    It is made with the pipeline and the folder of its file. A failure is an OffsetStoreUnusable: it is reported, and
    the pipeline continues, because the ledger knows what was delivered.
    """

    @property
    def where(self) -> str:
        """The store, as messages name it; never contains a secret."""

    @property
    def with_the_plan(self) -> bool:
        """Whether the ledger writes it, in the plan's transaction."""

    def load(self, places: Sequence[Place]) -> Positions:
        """Return what is stored for the topics of these partitions, if anything."""

    def begin(self, places: Sequence[Place]) -> Positions:
        """Return where a pipeline without a plan begins, as far as the store knows."""

    def save(self, positions: Positions) -> None:
        """Replace the stored offsets by these, all at once."""

    def close(self) -> None:
        """Close the connections."""


def open_store(pipeline: Pipeline, folder: Path) -> OffsetStore:
    """Open the configured store; its paths are relative to `folder`."""
    return _maker(pipeline.offsets.store)(pipeline, folder)


def _maker(store: str) -> Callable[[Pipeline, Path], OffsetStore]:
    """Return what makes a store: one that comes with Tailrace, or a class of the user's."""
    made: Callable[[Pipeline, Path], OffsetStore] = STORES.get(store) or load("offsets.store", store)
    return made


class KafkaStore:
    """The pipeline's consumer group, which the ledger writes in the plan's own transaction."""

    with_the_plan = True

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._base = client_options(pipeline.kafka)
        self._group = offsets_group(pipeline.pipeline)
        self._from = pipeline.offsets.from_

    @property
    def where(self) -> str:
        """The group."""
        return f"group {self._group}"

    def load(self, places: Sequence[Place]) -> Positions:
        """Return the group's offsets."""
        return {place: each.offset for place, each in self._committed(self._group, places).items()}

    def begin(self, places: Sequence[Place]) -> Positions:
        """Return the offsets of the group named by `offsets.from`."""
        return self._begin(places, takes=False)

    def take_over(self, places: Sequence[Place]) -> Positions:
        """Return the same to a driver that begins there: from now on, the group's own pipeline plans nothing more."""
        return self._begin(places, takes=True)

    def tells(self, places: Sequence[Place]) -> bool:
        """Return whether the group of `offsets.from` may be read."""
        try:
            self._committed(self._from or self._group, places)
        except NotAuthorized:
            return False
        return True

    def _begin(self, places: Sequence[Place], *, takes: bool) -> Positions:
        if self._from is None:
            return {}
        ask = partial(self._committed, self._from, places)
        found = predecessor.begin(self._pipeline, self._from, places, ask, takes=takes)
        if not found:
            raise OffsetStoreUnusable(
                f"offsets.from: the group {self._from!r} has no offsets of the source topics",
                kept="nothing was read or written",
                then="correct the group's name, or omit it to begin as auto.offset.reset says",
            )
        return found

    def save(self, positions: Positions) -> None:
        """Do nothing: the ledger has written them with the plan."""

    def close(self) -> None:
        """Nothing is held."""

    def _committed(self, group: str, places: Sequence[Place]) -> dict[Place, TopicPartition]:
        options = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer(self._base | options)
        asked = [TopicPartition(topic, number) for topic, number in places]
        topics = [on_topic(Operation.DESCRIBE, topic) for topic in sorted({topic for topic, _ in places})]
        try:
            found = committed(consumer, asked, f"reading the offsets of {group}", [on_group(group), *topics])
        finally:
            consumer.close()
        return {(each.topic, each.partition): each for each in found if each.offset >= 0}


class FileStore:
    """A JSON document, replaced atomically: a reader sees the old one or the new one, even after a power failure."""

    with_the_plan = False

    def __init__(self, file: Path, pipeline: str) -> None:
        self._file = file
        self._pipeline = pipeline

    @property
    def where(self) -> str:
        """The file."""
        return f"file {self._file}"

    def load(self, places: Sequence[Place]) -> Positions:
        """Return the document's offsets; a file that does not exist has none."""
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable("cannot be read", error) from error
        return from_document(text, self.where)

    def begin(self, places: Sequence[Place]) -> Positions:
        """Return the document's offsets."""
        return self.load(places)

    def save(self, positions: Positions) -> None:
        """Write a temporary file, then rename it."""
        try:
            replace_file(self._file, to_document(self._pipeline, positions))
        except OSError as error:
            raise self._unusable("cannot be written", error) from error

    def close(self) -> None:
        """Nothing is held."""

    def _unusable(self, what: str, error: Exception) -> OffsetStoreUnusable:
        return OffsetStoreUnusable(
            f"{self.where} {what}: {error}",
            kept="the ledger, which knows what was delivered",
            then="correct offsets.path, or the file's rights",
        )


def replace_file(file: Path, text: str) -> None:
    """Replace a file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            os.fchmod(stream.fileno(), 0o644)  # other users may read it
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _zookeeper(pipeline: Pipeline, folder: Path) -> OffsetStore:
    from tailrace.progress.zookeeper import ZooKeeperStore  # needs kazoo, which is an extra

    return ZooKeeperStore(pipeline)


STORES: dict[str, Callable[[Pipeline, Path], OffsetStore]] = {
    StoreKind.KAFKA: lambda pipeline, folder: KafkaStore(pipeline),
    StoreKind.FILE: lambda pipeline, folder: FileStore(folder / (pipeline.offsets.path or ""), pipeline.pipeline),
    StoreKind.ZOOKEEPER: _zookeeper,
}
