"""The gate against a small model, step by step: each record comes out once, on one side, whatever dies.

The decisions are Tailrace's own code: `decide`, the verdicts in a marker, and `completed`, which checks whether an
attempt may commit. Two records are enough: one rejected and one accepted, or two of a kind. Every reading may reach
different verdicts from the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tailrace.config import Delivery
from tailrace.errors import InputUnread, VerdictChanged
from tailrace.gateway import Assignment, ReadDone
from tailrace.gateway.attempts import Aside, Attempt, completed
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.verdicts import Verdicts
from tailrace.kafka.rejected_headers import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from tailrace.progress.marker import Decision, Marker, decide
from tailrace.progress.plan import BatchId, SinkPartition

RECORDS = (0, 1)
BATCH = BatchId(0)
CHOICES = tuple(chain.from_iterable(combinations(RECORDS, count) for count in range(len(RECORDS) + 1)))
Choice = tuple[int, ...]


class World(NamedTuple):
    """What is committed, and what the running attempts hold."""

    rejected: Choice = ()
    outputs: Choice = ()
    read_marker: Marker | None = None  # of the reading task's sink partition
    marker: Marker | None = None  # of the writing task's
    reading: Choice | None = None  # the records that the running reading attempt rejects
    shuffled: Choice | None = None  # accepted rows that a reading has handed on
    read: bool = False  # without a shuffle: whether the attempt has read to its end
    judged: bool = False
    attempts: int = 0
    end: str = ""  # done, or stopped


Move = tuple[str, World]


@functools.cache
def verdicts(rejected: Choice) -> Verdicts:
    """Return what the gateway collects for these rejected records."""
    found = Verdicts()
    headers = [
        [(HEADER_TOPIC, b"in"), (HEADER_PARTITION, b"0"), (HEADER_OFFSET, str(each).encode())] for each in rejected
    ]
    rows = [{"headers": [{"key": key, "value": value} for key, value in each], "reason": "model"} for each in headers]
    for _ in found.rows(iter([pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)])):
        pass
    return found


def accepted(rejected: Choice) -> Choice:
    """Return the other records."""
    return tuple(each for each in RECORDS if each not in rejected)


class BehindAShuffle:
    """Reading tasks commit their rejected records before their rows count; other tasks write."""

    def __init__(self, *, compares: bool = True, commits_first: bool = True, attempts: int = 3) -> None:
        self._compares, self._commits_first, self._attempts = compares, commits_first, attempts

    def moves(self, world: World) -> Iterator[Move]:
        """Yield what can happen next, with the resulting world."""
        if world.end:
            return
        if world.reading is None and world.shuffled is None and world.attempts < self._attempts:
            for choice in CHOICES:
                yield f"reads, rejecting {choice}", world._replace(reading=choice, attempts=world.attempts + 1)
        if world.reading is not None:
            yield "the reading dies", world._replace(reading=None)
            yield from self._read(world, world.reading)
        if world.shuffled is not None:
            yield "the rows between the tasks are lost", world._replace(shuffled=None)
            yield from self._write(world, world.shuffled)

    def _read(self, world: World, choice: Choice) -> Iterator[Move]:
        handed = world._replace(reading=None, shuffled=accepted(choice))
        if decide(world.read_marker, BATCH, "d", "model") is Decision.SKIP and world.read_marker is not None:
            try:
                if self._compares:
                    verdicts(choice).check(world.read_marker.verdicts, "model")
            except VerdictChanged:
                yield "stops: a verdict has changed", world._replace(end="stopped")
                return
            yield "finds its rejected records delivered", handed
            return
        text = verdicts(choice).text()
        after_commit = handed._replace(rejected=world.rejected + choice, read_marker=Marker.of(BATCH, "d", 2, text))
        yield "commits its rejected records, and its rows count", after_commit
        yield "commits its rejected records and dies", after_commit._replace(shuffled=None)
        if not self._commits_first:
            yield "its rows count, nothing is committed", handed

    def _write(self, world: World, rows: Choice) -> Iterator[Move]:
        if decide(world.marker, BATCH, "d", "model") is Decision.SKIP:
            yield "finds its outputs delivered", world._replace(end="done")
            return
        after_commit = world._replace(outputs=world.outputs + rows, marker=Marker.of(BATCH, "d", 2, ""))
        yield "commits its outputs", after_commit._replace(end="done")
        yield "commits its outputs, but the answer is lost", after_commit


class InOneTask:
    """The task that reads is the task that writes: one transaction, if the attempt is complete."""

    def __init__(self, *, asks: bool = True, attempts: int = 3) -> None:
        self._asks, self._attempts = asks, attempts

    def moves(self, world: World) -> Iterator[Move]:
        """Yield what can happen next, with the resulting world."""
        if world.end:
            return
        if world.reading is None and world.attempts < self._attempts:
            begun = world._replace(attempts=world.attempts + 1, read=False, judged=False)
            for choice in CHOICES:
                yield f"begins, rejecting {choice}", begun._replace(reading=choice)
        if world.reading is None:
            return
        yield "the attempt dies", world._replace(reading=None)
        if not world.read:
            yield "reads to the end", world._replace(read=True)
        elif not world.judged:
            yield "gives each record its verdict", world._replace(judged=True)
        yield from self._commit(world, world.reading)

    def _commit(self, world: World, choice: Choice) -> Iterator[Move]:
        if decide(world.marker, BATCH, "d", "model") is Decision.SKIP:
            yield "finds everything delivered", world._replace(end="done")
            return
        try:
            if self._asks:
                completed(Attempt(Aside(Path("none")), ReadDone() if world.read else None, world.judged), _TASK)
        except InputUnread:
            yield "is refused: the function stopped early", world._replace(reading=None)
            return
        after_commit = world._replace(
            outputs=world.outputs + (accepted(choice) if world.read else accepted(choice)[:1]),
            rejected=world.rejected + (choice if world.judged else ()),
            marker=Marker.of(BATCH, "d", 1, ""),
        )
        yield "commits", after_commit._replace(end="done")
        yield "commits, but the answer is lost", after_commit._replace(reading=None)


_TASK = Assignment(
    pipeline="model",
    batch=BATCH,
    partition=SinkPartition(0),
    sinks=1,
    digest="d",
    delivery=Delivery.EXACTLY_ONCE,
    ledger="ledger",
    topic="out",
    rejected="rejected",
    run="run",
    attempt="attempt",
    judges=True,
    options={},
)


def walk(model: BehindAShuffle | InOneTask) -> tuple[int, str, tuple[str, ...]]:
    """Walk every reachable world; return their number, and the first fault with the steps to it."""
    seen: dict[World, tuple[str, ...]] = {World(): ()}
    todo = [World()]
    while todo:
        world = todo.pop(0)
        for name, then in model.moves(world):
            if then in seen:
                continue
            seen[then] = (*seen[world], name)
            out = sorted(then.rejected + then.outputs)
            if len(out) != len(set(out)):
                return len(seen), f"{out} came out", seen[then]
            if then.end == "done" and out != list(RECORDS):
                return len(seen), f"done, and {out} came out", seen[then]
            todo.append(then)
    return len(seen), "", ()
