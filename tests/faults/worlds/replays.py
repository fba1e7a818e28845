"""Replays of rejected records next to a world's pipeline: killed, taken over by another one, and repeated.

What they send is rejected once more: each record as often as the marks say that it was sent.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Message, TopicPartition

from faults.checker import Array
from faults.reading import whole
from faults.worlds.encodings import heads_of
from faults.worlds.excuses import Stuck, excuses
from faults.worlds.launching import MOST_STARTS, copied, launched
from faults.worlds.world import Place
from tailrace.demo.driver import Driver
from tailrace.errors import CommitInDoubt, KafkaFailed
from tailrace.kafka.rejected_headers import HEADER_PIPELINE

if TYPE_CHECKING:
    from faults.worlds.pipeline import Driven

_BEGUN = 0.5  # seconds after which a replay may be struck; it sends and commits within four
_AT_WORK = 4.0
_BESIDE = (CommitInDoubt, KafkaFailed)  # another replay has taken over


class Replays:
    """The same replay again and again; some of them are killed, or have another one beside them."""

    def __init__(self, one: Driven, strikes: int) -> None:
        self._one, self._left = one, strikes
        self._name = one.name
        self._folder = copied(one.folder, "replays")
        self._starts = 0
        self._running: list[Driver] = []
        self.begin()

    def __str__(self) -> str:
        return "the replays"

    @property
    def progress(self) -> int:
        """What grows while they do something."""
        return self._starts

    @property
    def over(self) -> bool:
        """Whether all have been made, and have ended."""
        return not self._left and not self._running

    def begin(self) -> None:
        """Start one more."""
        self._starts += 1
        chance = self._one.chance
        self._until = time.monotonic() + chance.uniform(_BEGUN, _AT_WORK)
        command = ["tailrace.cli.main", "rejected", "replay", "pipeline.yaml", "--all", "--yes"]
        environment = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": self._one.path}
        self._running.append(launched([*command, "--output", "json"], environment, self._folder, Place.THREADS))

    def step(self) -> None:
        """Strike one that has been at work for a while, and start another one in place of each that was struck."""
        for each in [each for each in self._running if each.code is not None]:
            self._running.remove(each)
            self._keep(each)
            if each.code == 0:
                continue
            error = each.failure()
            if self._starts >= MOST_STARTS or not isinstance(error, (*_BESIDE, *excuses(self._one.world))):
                raise Stuck(f"a replay ended with {each.code}: {error}".replace("\n", " "))
            if not self._running and not self._left:
                self.begin()
        if self._left and time.monotonic() > self._until:
            self._left -= 1
            if self._one.chance.random() < 0.5:
                self.close()
            self.begin()

    def _keep(self, ended: Driver) -> None:
        """Append what one has said to a file; it tells why one is stuck."""
        with (self._folder / "replays.jsonl").open("a", encoding="utf-8") as kept:
            kept.writelines(json.dumps({"code": ended.code, **heard.event}) + "\n" for heard in ended.rest())

    def close(self) -> None:
        """Leave no process behind."""
        for each in self._running:
            each.kill()
        self._running.clear()

    def sent(self) -> dict[int, Array]:
        """Return the heads of the rejected records that are marked as sent."""
        one = self._one
        before, beyond = _marks(one.context.bootstrap, f"tailrace.{self._name}.replay", one.rejected)
        values: list[bytes] = []

        def keep(message: Message) -> None:
            offset, named = message.offset() or 0, dict(message.headers() or []).get(HEADER_PIPELINE)
            if named != self._name.encode():  # of an earlier name: these are not replayed, and lie between the others
                return
            if offset < before or any(first <= offset <= last for first, last in beyond):
                values.append(message.value() or b"")

        whole(one.context.bootstrap, one.rejected, keep, isolation="read_committed")
        return {0: heads_of(one.world, values)}


def _marks(bootstrap: str, group: str, topic: str) -> tuple[int, list[tuple[int, int]]]:
    """Return the offset before which all was sent, and the ranges beyond it, of a topic with one partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
    finally:
        consumer.close()
    ranges = [each.split("-") for each in (found.metadata or "").split(",") if each]
    return max(found.offset, 0), [(int(first), int(last)) for first, last in ranges]
