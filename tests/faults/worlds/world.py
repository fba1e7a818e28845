"""A world: a pipeline, its input and the strikes against it.

A world is data. Its line is everything that is needed to run it again: `WORLD='…'` replays it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self


class Place(StrEnum):
    """Where the pipeline runs."""

    THREADS = "threads"  # the engine without Spark: the driver is one process, with the gateway's code in its threads
    SPARK = "spark"  # `tailrace run`, local
    CLUSTER = "cluster"  # `tailrace run` with two executors, which are processes
    DROPIN = "dropin"  # a job of Spark's own that only writes with Tailrace


class Work(StrEnum):
    """What the function makes of a record."""

    SAME = "same"  # one record
    EXPLODE = "explode"  # one to three records
    FILTER = "filter"  # four of five records
    SHUFFLE = "shuffle"  # one record, after a repartition by its key
    JOIN = "join"  # six of seven records: those that a small table has
    LOOKUP = "lookup"  # the same with a cached table, and Spark decides how to join
    DISTINCT = "distinct"  # each record comes twice, and once is to pass: a stateful function
    LIMIT = "limit"  # the first records of each task; the function reads no further
    NONE = "none"  # there is no function


class Encoding(StrEnum):
    """The format of source and sink."""

    RAW = "raw"
    JSON = "json"
    PYDANTIC = "pydantic"  # JSON, with a model as its schema
    AVRO = "avro"
    REGISTRY = "registry"  # Avro in the Confluent wire format, with a schema registry


class Input(StrEnum):
    """How the input was written."""

    PLAIN = "plain"
    COMMITTED = "committed"  # in transactions
    ABORTED = "aborted"  # in transactions, some of which were aborted
    COMPACTED = "compacted"  # the brokers remove records of a certain key, in part before the pipeline reads them


class Strike(StrEnum):
    """What happens to the pipeline once some of its input is delivered."""

    KILL = "kill"  # kill -9 of the driver and all its processes
    PAUSE = "pause"  # the driver is suspended, another takes over, then it resumes
    RIVAL = "rival"  # another driver is started while the first one works
    RESTART = "restart"  # SIGTERM, then a start
    RESIZE = "resize"  # SIGTERM, then a start with other settings
    DEPLOY = "deploy"  # kill -9, then a start with other code and other settings, which an open batch may refuse
    CLOCK = "clock"  # the clock of the pipeline's processes jumps
    BROKER = "broker"  # a broker is killed -9 and started again
    FREEZE = "freeze"  # a broker is suspended for some seconds
    FULL = "full"  # a broker cannot write to its disk, ends, and is started again
    ROLLING = "rolling"  # every broker is stopped and started, one after the other; so is the active controller
    SLOW = "slow"  # from here to the end one broker answers each request late
    SPLIT = "split"  # for some seconds nothing that the other brokers send reaches one of them
    FEW = "few"  # a broker is away, and too few replicas are in sync for a write
    UNLISTED = "unlisted"  # for some seconds the brokers list none of themselves, as when all were suspended
    ELECTION = "election"  # the leaders of all partitions move
    REASSIGN = "reassign"  # the replicas of all partitions move, those of Kafka's own topics too
    GROW = "grow"  # the input gets more partitions
    HANG = "hang"  # a transaction of another producer stays open in the input for some seconds
    TRIM = "trim"  # the input that is delivered is deleted, as its retention would
    LOSE = "lose"  # input that nobody has read yet is deleted, too
    RECREATE = "recreate"  # the source topic is deleted and created again
    CUT = "cut"  # every connection between the pipeline and its brokers is closed
    OUTAGE = "outage"  # for some seconds the brokers cannot be reached: connections are refused
    SILENCE = "silence"  # for some seconds nothing passes; then everything that was in flight arrives
    REGISTRY = "registry"  # the schema registry fails while the driver is killed and started again
    RIGHTS = "rights"  # for some seconds the pipeline may not use one of its topics or transactional ids
    STORE = "store"  # for some seconds the object store that keeps the state fails
    REPLACE = "replace"  # other code and settings take over from a driver that works, or is paused and resumes
    ISOLATION = "isolation"  # what a killed driver left is finished at the other isolation, behind an open transaction
    RESTORE = "restore"  # the ledger is restored from an older backup
    RENAME = "rename"  # the pipeline goes on under another name, with `offsets.from`
    HIDE = "hide"  # for some seconds the pipeline may not see its source topic, which it reads by a pattern
    SWAP = "swap"  # the source topic is recreated while the pipeline may not see it
    MOVE = "move"  # `tailrace offsets set` skips some records of what a killed driver left


NETWORK_STRIKES = frozenset({Strike.CUT, Strike.OUTAGE, Strike.SILENCE})
LOSSES = frozenset({Strike.LOSE, Strike.RECREATE, Strike.SWAP, Strike.MOVE})
DELETIONS = LOSSES | {Strike.TRIM}
GROWTH = 2  # partitions that the input gets at once
# A supervisor restarts a driver that ends because a broker is away.
BROKER_STRIKES = NETWORK_STRIKES | {
    Strike.BROKER, Strike.FREEZE, Strike.FULL, Strike.ROLLING, Strike.SLOW, Strike.SPLIT, Strike.FEW,
    Strike.UNLISTED, Strike.ELECTION, Strike.REASSIGN,
}  # fmt: skip
# With these, an offset of the input is not the number of its record.
TAKE_OFFSETS = BROKER_STRIKES | {Strike.HANG, Strike.ISOLATION}
HIDING = frozenset({Strike.HIDE, Strike.SWAP})
DOUBTED = HIDING | {Strike.RECREATE}  # a driver asks for a while whether the topic is the one that it read
GUARDED = HIDING | {Strike.RIGHTS}  # they need brokers that ask for a user
# What people do to a pipeline between two drivers. A world has one of them at most.
OF_ITS_LIFE = (
    Strike.REPLACE, Strike.ISOLATION, Strike.RESTORE, Strike.RENAME, Strike.HIDE, Strike.SWAP, Strike.MOVE,
)  # fmt: skip


@dataclass(frozen=True)
class Crash:
    """A crash point of the driver or its gateway, in a batch; once, or again in the replay."""

    at: str
    batch: int
    times: int = 1


@dataclass(frozen=True)
class Knobs:
    """Settings that change how a pipeline gets there, and with `at_least_once` what it promises."""

    at_least_once: bool = False
    on_data_loss: str = "stop"
    uncommitted: bool = False  # records are read before their transaction is committed
    trigger: float = 0.0
    target: float = 0.0
    max_bytes: int | None = None
    idle: float | None = None
    raises: bool = False  # the function raises at a few records, which are rejected
    late: bool = False  # it begins at the latest record, and its first driver dies before there is one


@dataclass(frozen=True)
class World:
    """Everything that decides a run."""

    seed: int
    place: Place
    work: Work
    encoding: Encoding
    input: Input
    counts: tuple[int, ...]  # records of each source partition
    outputs: int  # partitions of the sink topic
    bad_every: int  # one record in so many is to be rejected; 0: none
    max_records: int
    sink_partitions: int | None
    source_partitions: int | None
    strikes: tuple[Strike, ...]
    crashes: tuple[Crash, ...]
    process_partitions: int | None = None
    knobs: Knobs = Knobs()
    # The crashes of a backfill that runs next to the pipeline; None: there is no backfill.
    backfill: tuple[Crash, ...] | None = None
    unlike: bool = False  # the start after a crash has other settings, as in a deploy
    # How many of the replays of rejected records are struck that run next to the pipeline; None: there is no replay.
    replays: int | None = None

    @property
    def line(self) -> str:
        """The world in one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, line: str) -> Self:
        """Make the world of a line."""
        data: dict[str, Any] = json.loads(line)
        data["counts"] = tuple(data["counts"])
        data["strikes"] = tuple(Strike(each) for each in data["strikes"])
        data["crashes"] = tuple(Crash(**each) for each in data["crashes"])
        again = data.get("backfill")
        data["backfill"] = None if again is None else tuple(Crash(**each) for each in again)
        data["knobs"] = Knobs(**data.get("knobs", {}))
        kinds = {"place": Place, "work": Work, "encoding": Encoding, "input": Input}
        return cls(**data | {name: kind(data[name]) for name, kind in kinds.items()})

    def smaller(self) -> list[Self]:
        """Return worlds that lack one thing each: if one fails as well, it shows the failure better."""
        found = [replace(self, strikes=(*self.strikes[:n], *self.strikes[n + 1 :])) for n in range(len(self.strikes))]
        found += [replace(self, crashes=(*self.crashes[:n], *self.crashes[n + 1 :])) for n in range(len(self.crashes))]
        if self.backfill is not None:
            found += [replace(self, backfill=left) for left in (None, ()) if left != self.backfill]
        if self.replays is not None:
            found.append(replace(self, replays=None))
        if self.unlike:
            found.append(replace(self, unlike=False))
        if len(self.counts) > 1:
            found.append(replace(self, counts=self.counts[: (len(self.counts) + 1) // 2]))
        if max(self.counts) > 200:
            found.append(replace(self, counts=tuple(each // 2 for each in self.counts)))
        simple: dict[str, Any] = {
            "input": Input.PLAIN, "work": Work.SAME, "encoding": Encoding.RAW, "bad_every": 0,
            "sink_partitions": None, "source_partitions": None, "process_partitions": None, "outputs": 1,
            "knobs": Knobs(),
        }  # fmt: skip
        if self.work in (Work.NONE, Work.DISTINCT):  # they have another input
            del simple["work"]
        # Raw records have no columns to join by, and none of them is bad.
        if Strike.REGISTRY in self.strikes or self.work in (Work.JOIN, Work.LOOKUP) or self.bad_every:
            del simple["encoding"]
        for name, value in simple.items():
            if getattr(self, name) != value:
                change: dict[str, Any] = {name: value}
                found.append(replace(self, **change))
        return found
