"""Drawing a world from a seed: which of its parts go together, and how often each is drawn."""

from __future__ import annotations

import random
from dataclasses import replace

from faults.worlds.world import (
    BROKER_STRIKES,
    DELETIONS,
    GROWTH,
    LOSSES,
    OF_ITS_LIFE,
    TAKE_OFFSETS,
    Crash,
    Encoding,
    Input,
    Knobs,
    Place,
    Strike,
    Work,
    World,
)
from tailrace.config import LEDGER_PARTITIONS
from tailrace.crash_points import DRIVER, GATEWAY, READER, Point

_MAY_RAISE = frozenset({Work.SAME, Work.EXPLODE, Work.FILTER, Work.JOIN})
_AFTER_START = (Point.LEDGER_TAKEN, Point.SINKS_FENCED, Point.OPEN_BATCH_FINISHED)
# The end of the driver's life comes once, and not in a batch.
_NEVER = (Point.DONE_OPEN, Point.DONE_NOTED, Point.BATCH_RETURNED, *_AFTER_START)

# Here some sink partitions of a batch may be written, and others not; or a marker lies in a transaction that is left
# open, which only a fence ends. Drawn three times as often.
_PARTLY = (Point.MARKER_SENT, Point.COMMIT_SENT, Point.COMMIT_ACKNOWLEDGED, Point.BATCH_WRITTEN)


# Two drivers at once, of which one believes that it leads, and a store, which few worlds have: drawn more often.
_OFTEN = (Strike.PAUSE, Strike.PAUSE, Strike.RIVAL, Strike.STORE, Strike.STORE)
_MANY = 7  # source partitions: more than are written at once
_COSTLY = 16  # the most that are often written by a transaction each
_MOST = 4  # strikes of a world
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
    encoding = Encoding.RAW if dropin else chance.choice(tuple(Encoding))
    work = chance.choice(_works(where, encoding))
    strikes = _strikes(chance, where, encoding, work)
    if dropin:  # such a job has a sink partition for each source partition, and its ledger has no more than these
        partitions = min(partitions, LEDGER_PARTITIONS - GROWTH * strikes.count(Strike.GROW))
    crashes = _crashes(chance, batches, 1 if strikes else chance.choice((1, 2, 3)), dropin)
    # A batch cannot be written in part if it has no more sink partitions than are written at once.
    partly = not dropin and any(each.at in _PARTLY for each in crashes)
    # Order is promised, and so judged, only where no range is split; many partitions have ranges enough without.
    splits = (5, 9) if partly else (2, 5, 9)
    whole = () if partly and partitions < _MANY else (None,) * (1 if partitions > _COSTLY else len(splits))
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
        source_partitions=None if dropin else chance.choice((*whole, *splits)),
        strikes=strikes,
        crashes=crashes,
        process_partitions=spread,
        knobs=Knobs() if dropin else _knobs(chance, read, strikes, per_batch, may_raise=may_raise),
        # Drawn last, so that a seed's other choices are those that it had before there were backfills.
        backfill=None if dropin or work is Work.DISTINCT else _backfill(chance, strikes),
        unlike=not dropin and chance.random() < 1 / 3,
    )
    # Drawn after everything else, as above. Where input may be lost, a position may be moved to the latest record.
    late = not dropin and not DELETIONS.intersection(strikes) and chance.random() < 0.1
    world = replace(world, knobs=replace(world.knobs, late=late)) if late else world
    world = _lived(chance, world) if chance.random() < 0.3 else world
    return replace(world, replays=chance.randint(1, 4)) if _may_replay(world) and chance.random() < 0.2 else world


def _may_replay(world: World) -> bool:
    """Tell whether records can be rejected and sent again, so that they come out once more for each time."""
    moved = LOSSES.intersection(world.strikes)  # these tell records by their offsets
    aborted = world.knobs.uncommitted or Strike.ISOLATION in world.strikes  # a killed replay's would be rejected too
    steady = not moved and not aborted and world.input is not Input.COMPACTED and world.place is not Place.DROPIN
    return steady and (world.bad_every > 0 or world.knobs.raises)


def _lived(chance: random.Random, world: World) -> World:
    """Put a strike of its life into a world, if one fits the others."""
    strikes = set(world.strikes)
    never: set[Strike] = set()
    if world.work is Work.DISTINCT:  # its checkpoint holds its offsets and its name, and Spark reads
        never |= set(OF_ITS_LIFE) - {Strike.RESTORE}
    if LOSSES & strikes:  # an offset must be the number of its record
        never |= {Strike.ISOLATION, Strike.RENAME}
    if world.input is not Input.PLAIN or TAKE_OFFSETS & strikes or world.backfill is not None:
        never |= {Strike.SWAP, Strike.MOVE}
    known = [each for each in OF_ITS_LIFE if each not in never]
    if world.place is Place.DROPIN or len(world.strikes) >= _MOST:
        return world
    kind, at = chance.choice(known), chance.randint(0, len(world.strikes))
    loss = "reset" if kind is not Strike.MOVE and chance.random() < 0.5 else world.knobs.on_data_loss
    knobs = replace(world.knobs, on_data_loss=loss, late=world.knobs.late and kind not in LOSSES)
    world = replace(world, strikes=(*world.strikes[:at], kind, *world.strikes[at:]), knobs=knobs)
    if kind is not Strike.SWAP:
        return world
    return replace(world, bad_every=0, knobs=replace(knobs, raises=False))  # a rejected record names its offset


def _backfill(chance: random.Random, strikes: tuple[Strike, ...]) -> tuple[Crash, ...] | None:
    """Draw a backfill and its crashes, for one pipeline in eight whose input is not deleted meanwhile."""
    if chance.random() >= 1 / 8 or DELETIONS.intersection(strikes):
        return None
    return _crashes(chance, 3, chance.choice((0, 1, 1, 2)), False)


def _strikes(chance: random.Random, where: Place, encoding: Encoding, work: Work) -> tuple[Strike, ...]:
    """Draw none to four strikes that such a pipeline can have."""
    never = {Strike.REGISTRY} if encoding is not Encoding.REGISTRY else set()
    never |= set() if work is Work.DISTINCT else {Strike.STORE}
    never |= _NOT_DROPIN if where is Place.DROPIN else set()
    known = [each for each in (*Strike, *_OFTEN) if each not in never and each not in OF_ITS_LIFE]
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
    works += [] if where is Place.THREADS or encoding is Encoding.RAW else [Work.JOIN, Work.LOOKUP]
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
