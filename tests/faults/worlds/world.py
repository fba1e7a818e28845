"""A world: a pipeline, its input and the strikes against it, drawn from a seed.

A world is data. Its line is everything that is needed to run it again: `WORLD='…'` replays it.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tailrace.config import LEDGER_PARTITIONS
from tailrace.crash_points import DRIVER, GATEWAY, READER, Point


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


_MAY_RAISE = frozenset({Work.SAME, Work.EXPLODE, Work.FILTER, Work.JOIN})
NETWORK_STRIKES = frozenset({Strike.CUT, Strike.OUTAGE, Strike.SILENCE})
LOSSES = frozenset({Strike.LOSE, Strike.RECREATE})
DELETIONS = LOSSES | {Strike.TRIM}
# A supervisor restarts a driver that ends because a broker is away.
BROKER_STRIKES = NETWORK_STRIKES | {
    Strike.BROKER, Strike.FREEZE, Strike.FULL, Strike.ROLLING, Strike.SLOW, Strike.SPLIT, Strike.FEW,
    Strike.ELECTION, Strike.REASSIGN,
}  # fmt: skip
# With these, an offset of the input is not the number of its record.
TAKE_OFFSETS = BROKER_STRIKES | {Strike.HANG}


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
        if Strike.REGISTRY in self.strikes or self.work is Work.JOIN or self.bad_every:
            del simple["encoding"]
        for name, value in simple.items():
            if getattr(self, name) != value:
                change: dict[str, Any] = {name: value}
                found.append(replace(self, **change))
        return found


_AFTER_START = (Point.LEDGER_TAKEN, Point.SINKS_FENCED, Point.OPEN_BATCH_FINISHED)
# The end of the driver's life comes once, and not in a batch.
_NEVER = (Point.DONE_OPEN, Point.DONE_NOTED, Point.BATCH_RETURNED, *_AFTER_START)

# Here some sink partitions of a batch may be written, and others not; or a marker lies in a transaction that is left
# open, which only a fence ends. Drawn three times as often.
_PARTLY = (Point.MARKER_SENT, Point.COMMIT_SENT, Point.COMMIT_ACKNOWLEDGED, Point.BATCH_WRITTEN)


# Two drivers at once, of which one believes that it leads: drawn more often than the others.
_OFTEN = (Strike.PAUSE, Strike.PAUSE, Strike.RIVAL)
_PLACES = (76, 14, 4, 6)  # of a hundred worlds: a driver without Spark costs a tenth of one with two executors
# Spark plans the batches of such a job: it may have one driver, the same settings, and the input that it has seen.
_NOT_DROPIN = {Strike.PAUSE, Strike.RIVAL, Strike.RESIZE, Strike.DEPLOY, Strike.TRIM, Strike.RIGHTS, *LOSSES}


def draw(seed: int, place: Place | None = None) -> World:
    """Draw a world."""
    chance = random.Random(seed)
    where = place or chance.choices(tuple(Place), weights=_PLACES)[0]
    partitions = chance.choice((1, 2, 3, 4, 7, 16, 64, 200))
    per_batch = chance.choice((200, 1000, 5000, 20_000, *([50_000] if where is Place.THREADS else [])))
    batches = chance.randint(4, 10)
    dropin = where is Place.DROPIN
    if dropin:  # such a job has a sink partition for each source partition, and its ledger has no more than these
        partitions = min(partitions, LEDGER_PARTITIONS)
    encoding = Encoding.RAW if dropin else chance.choice(tuple(Encoding))
    work = chance.choice(_works(where, encoding))
    strikes = _strikes(chance, where, encoding, work)
    crashes = _crashes(chance, batches, 1 if strikes else chance.choice((1, 2, 3)), dropin)
    # A batch cannot be written in part if it has no more sink partitions than are written at once.
    partly = not dropin and any(each.at in _PARTLY for each in crashes)
    read = Input.PLAIN if LOSSES.intersection(strikes) else chance.choice(_inputs(where))
    good = encoding is Encoding.RAW or work is Work.DISTINCT or Strike.RECREATE in strikes
    spread = chance.choice((None, None, 1, 4)) if where in (Place.SPARK, Place.CLUSTER) else None
    may_raise = spread is None and work in _MAY_RAISE
    world = World(
        seed=seed,
        place=where,
        work=work,
        encoding=encoding,
        input=read,
        counts=_counts(chance, partitions, per_batch * batches),
        outputs=chance.choice((1, 2, 5, 12)),
        bad_every=0 if good else chance.choice((0, 7, 97)),
        max_records=per_batch,
        sink_partitions=None if dropin else chance.choice((3, 8) if partly else (None, None, 1, 3, 8)),
        source_partitions=None if dropin else chance.choice((5, 9) if partly else (None, 2, 5, 9)),
        strikes=strikes,
        crashes=crashes,
        process_partitions=spread,
        knobs=Knobs() if dropin else _knobs(chance, read, strikes, per_batch, may_raise=may_raise),
        # Drawn last, so that a seed's other choices are those that it had before there were backfills.
        backfill=None if dropin or work is Work.DISTINCT else _backfill(chance, strikes),
        unlike=not dropin and chance.random() < 1 / 3,
    )
    # Drawn after everything else, as above. Where input may be lost, a position may be moved to the latest record.
    late = not dropin and work is not Work.DISTINCT and not DELETIONS.intersection(strikes) and chance.random() < 0.1
    return replace(world, knobs=replace(world.knobs, late=late)) if late else world


def _backfill(chance: random.Random, strikes: tuple[Strike, ...]) -> tuple[Crash, ...] | None:
    """Draw a backfill and its crashes, for one pipeline in eight whose input is not deleted meanwhile."""
    if chance.random() >= 1 / 8 or DELETIONS.intersection(strikes):
        return None
    return _crashes(chance, 3, chance.choice((0, 1, 1, 2)), False)


def _strikes(chance: random.Random, where: Place, encoding: Encoding, work: Work) -> tuple[Strike, ...]:
    """Draw none to four strikes that such a pipeline can have."""
    never = {Strike.REGISTRY} if encoding is not Encoding.REGISTRY else set()
    # Which records are left decides what a function with state lets pass.
    never |= set(LOSSES) if work is Work.DISTINCT else {Strike.STORE}
    never |= _NOT_DROPIN if where is Place.DROPIN else set()
    known = [each for each in (*Strike, *_OFTEN) if each not in never]
    found = [chance.choice(known) for _ in range(chance.choice((0, 1, 1, 2, 3, 4)))]
    if LOSSES.intersection(found):
        found = [each for each in found if each not in TAKE_OFFSETS]
    if (where is Place.DROPIN or work is Work.DISTINCT) and BROKER_STRIKES.intersection(found):
        # Spark's own source reads there. Its client waits by the time of day: set back, it waits as much longer.
        found = [each for each in found if each is not Strike.CLOCK]
    return tuple(found)


def _knobs(
    chance: random.Random, read: Input, strikes: tuple[Strike, ...], per_batch: int, *, may_raise: bool
) -> Knobs:
    """Draw settings; most pipelines have the usual ones."""
    return Knobs(
        at_least_once=chance.random() < 0.1,
        on_data_loss=chance.choice(("stop", "reset")) if LOSSES.intersection(strikes) else "stop",
        uncommitted=chance.random() < 0.15 and read is not Input.ABORTED and Strike.HANG not in strikes,
        trigger=chance.choice((0.0, 0.0, 0.0, 0.5)),
        target=chance.choice((0.0, 0.0, 1.0)),
        max_bytes=chance.choice((None, None, None, 40 * per_batch)),  # about half of the batch
        idle=chance.choice((None, None, 1.0)),
        raises=may_raise and chance.random() < 0.15,
    )


def _works(where: Place, encoding: Encoding) -> list[Work]:
    """Return what a function can be there."""
    works = [Work.SAME, Work.EXPLODE, Work.FILTER]
    works += [] if where is Place.THREADS else [Work.SHUFFLE]
    if where is Place.DROPIN:
        return works
    works += [Work.LIMIT]
    works += [] if where is Place.THREADS else [Work.DISTINCT]
    works += [] if where is Place.THREADS or encoding is Encoding.RAW else [Work.JOIN]
    return [*works, Work.NONE]


def _inputs(where: Place) -> list[Input]:
    """Return how the input may be written; of a job that only writes with Tailrace no end is known but the records."""
    return [each for each in Input if where is not Place.DROPIN or each is not Input.COMPACTED]


def _counts(chance: random.Random, partitions: int, total: int) -> tuple[int, ...]:
    """Spread the records: evenly, with some partitions empty, or nearly all in one."""
    kind = chance.choice(("even", "holes", "skew"))
    weights = [1.0 if kind == "even" else chance.choice((0.0, 1.0, 3.0)) for _ in range(partitions)]
    weights[0] = 100.0 if kind == "skew" else 1.0
    return tuple(int(total * each / sum(weights)) for each in weights)


def _crashes(chance: random.Random, batches: int, count: int, dropin: bool) -> tuple[Crash, ...]:
    """Draw crash points; one in three is followed by a second crash in the start that replays its batch."""
    points = [each for each in (*DRIVER, *GATEWAY, *READER, *_PARTLY, *_PARTLY) if each not in _NEVER]
    if dropin:  # the driver and the reader are Spark's
        points = list(GATEWAY)
    found: list[Crash] = []
    for batch in sorted(chance.sample(range(1, batches), k=min(count, batches - 1))):
        found.append(Crash(chance.choice(points).value, batch))
        if chance.random() < 1 / 3 and not dropin:
            found.append(Crash(chance.choice(_AFTER_START).value, batch))
    return tuple(found)
