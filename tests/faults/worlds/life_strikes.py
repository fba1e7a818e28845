"""The strikes of a pipeline's life: what people do to it between two drivers.

If a start is refused for it, what the refusal advises must work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType  # type: ignore[attr-defined]

from faults.worlds.broker_strikes import AWAY
from faults.worlds.excuses import Stuck
from faults.worlds.history import HISTORY
from faults.worlds.input_strikes import begun, gap, recreated, wait_for_ends
from faults.worlds.launching import launched
from faults.worlds.pipeline import LIMIT, Driven
from faults.worlds.records import ABORTED, aborted, key_of, numbered, values
from faults.worlds.rights import denied
from faults.worlds.world import Place, Strike
from tailrace.config.file import load
from tailrace.errors import (
    BatchOpen,
    CutChanged,
    MarkerConflict,
    OffsetStoreUnusable,
    PipelineRunning,
    ProgressMissing,
    TailraceError,
)
from tailrace.progress.ledger import Ledger
from tailrace.testing import Consumed, Record, consume, produce, wait_until

_IN_TRANSACTION = 50  # records
_TIMEOUT_MS = 300_000
_BESIDE = 3.0  # seconds in which a driver reads where another one ended
_LONG = 12.0  # seconds: an answer that shows less counts after ten
_STARTS = 30  # each takes a second at least, and a killed driver is listed for six
_MARKERS = 240.0  # seconds; longer than a killed driver's transaction may hide its markers


def _isolation(one: Driven) -> None:
    """Plan behind another producer's open transaction, kill the driver, and let the other isolation continue."""
    before = one.settings.get("source", {}).get("isolation")
    before = before or ("read_uncommitted" if one.world.knobs.uncommitted else "read_committed")
    after = "read_committed" if before == "read_uncommitted" else "read_uncommitted"
    settings = one.settings
    with one.awaiting(CutChanged):  # behind a shuffle, a batch that is delivered in part keeps its isolation
        with _transaction(one, commits=one.chance.random() < 0.5):
            one.write({0: one.world.max_records})
            if before == "read_committed":  # it may be idle, and stay so: nothing new is visible to it
                one.wait(_BESIDE)
            else:
                one.begin("a batch behind an open transaction")
            one.wait(one.chance.uniform(0.0, 1.0))
            one.kill()
            one.settings = {**settings, "source": {**settings.get("source", {}), "isolation": after}}
            one.start()
            one.wait(AWAY)
        accepted = one.accepted(CutChanged)
    if not accepted:
        one.finish(settings, "the batch that keeps its isolation")
        one.start()
    wait_for_ends(one)


@contextmanager
def _transaction(one: Driven, *, commits: bool) -> Iterator[None]:
    """Keep a transaction of another producer open in the input; it is committed in the end, or aborted."""
    producer, count = begun(one, _TIMEOUT_MS), one.counts[0]
    if commits:
        numbers = numbered(one.world, count, count + _IN_TRANSACTION).tolist()
        given = values(one.world, 0, count, count + _IN_TRANSACTION)
        one.counts[0] += _IN_TRANSACTION
    else:
        numbers = [ABORTED + number for number in range(_IN_TRANSACTION)]
        given = [aborted(one.world, 0, number) for number in range(_IN_TRANSACTION)]
    for number, value in zip(numbers, given, strict=True):
        producer.produce(one.source, value, key_of(one.world, number), partition=0)
    producer.flush(60)
    try:
        yield
    finally:
        (producer.commit_transaction if commits else producer.abort_transaction)(60)


def _restore(one: Driven) -> None:
    """Put an older plan into the ledger; if that is refused, as TR-303 and TR-306 advise, restore the newest."""
    if one.chance.random() < 0.5:  # the plan of an idle pipeline says that it is done
        one.rest("the backup of an idle pipeline")
        old = _last(one)
        one.write({0: one.world.max_records})
    else:
        old = _last(one)
    one.work("a batch after the backup")
    one.wait(one.chance.uniform(0.0, 1.0))
    one.kill()
    with Ledger.of(load(one.file()).pipeline) as ledger:
        ledger.take()  # it ends the transaction that the killed driver may have left open
    new = _last(one)
    _put(one, old)
    one.start()
    if not one.accepted(ProgressMissing, MarkerConflict):
        _put(one, new)
        one.start()


def _last(one: Driven) -> Consumed | None:
    """Return the pipeline's last plan in the ledger."""
    found = [each for each in consume(one.context.bootstrap, one.ledger) if each.key == one.name.encode()]
    return found[-1] if found else None


def _put(one: Driven, plan: Consumed | None) -> None:
    if plan is not None:
        produce(one.context.bootstrap, one.ledger, [Record(plan.value, plan.key, partition=plan.partition)])


def _rename(one: Driven) -> None:
    """Continue under another name; if its last batch is open, the old name must finish it first."""
    before, after = one.name, f"{one.name}-{len(one.names)}"
    settings = {each: values for each, values in one.settings.items() if each != "offsets"}
    if one.chance.random() < 0.5:
        one.kill()
    else:  # it ends while the next one begins
        threading.Timer(one.chance.uniform(0.0, _BESIDE), one.driver.ask_to_stop).start()
    one.rename(after)
    one.settings = {**settings, "offsets": {"from": f"tailrace.{before}"}}
    if _accepted_at_rest(one, BatchOpen, OffsetStoreUnusable):
        return
    never = isinstance(one.driver.failure(), OffsetStoreUnusable)  # it had no batch, and so no offsets
    renamed, one.settings = one.settings, settings
    one.rename(before)
    one.start()
    if not never:
        one.work("the open batch")
        one.stop()
        one.rename(after)
        one.settings = renamed
        one.start()


def _accepted_at_rest(one: Driven, *refusals: type[TailraceError]) -> bool:
    """Start drivers until one is accepted, or refused so; one that was killed counts as running for a while."""
    for _ in range(_STARTS):
        one.start()
        if one.accepted(*refusals, PipelineRunning, patience=_MARKERS):
            return True
        if not isinstance(one.driver.failure(), PipelineRunning):
            return False
    raise Stuck(f"{_STARTS} starts in vain: {one.driver.failure()}")


def _hide(one: Driven) -> None:
    with _hidden(one):
        one.wait(one.chance.choice((AWAY, _LONG)))


def _swap(one: Driven) -> None:
    with _hidden(one):
        recreated(one)
        one.wait(AWAY)


def _hidden(one: Driven) -> Any:
    operation = one.chance.choice((AclOperation.DESCRIBE, AclOperation.ALL))
    return denied(one.context.bootstrap, ResourceType.TOPIC, one.source, ResourcePatternType.LITERAL, operation)


def _move(one: Driven) -> None:
    """Skip some records, or none, with `tailrace offsets set`; an open batch must be finished first."""
    one.kill()
    shown, place = _target(one)
    try:
        _offsets(one, "set", place, "--yes")
    except BatchOpen:
        one.start()
        one.work("the open batch")
        one.stop()
        shown, place = _target(one)
        _offsets(one, "set", place, "--yes")
    number, at = map(int, place.rpartition(":")[2].split("="))
    one.gaps.append(gap(one, number, shown[number], at))
    one.start()


def _target(one: Driven) -> tuple[dict[int, int], str]:
    """Return where the pipeline continues in each partition, and where it is to continue in one of them."""
    rows = _offsets(one, "show")["offsets"]
    shown = {int(row["partition"]): int(row["next"] or 0) for row in rows}
    row = one.chance.choice(rows)
    number = int(row["partition"])
    at = one.chance.randint(shown[number], min(int(row["latest"]), shown[number] + one.world.max_records))
    return shown, f"{one.source}:{number}={at}"


def _offsets(one: Driven, command: str, *arguments: str) -> dict[str, Any]:
    """Run `tailrace offsets`, and return what it prints; wait until the brokers know that the driver is gone."""
    recorded = one.world.place is Place.THREADS  # the drivers of other places record nothing
    program = "faults.worlds.recorded" if recorded else "tailrace.cli.main"
    line = [program, "offsets", command, str(one.file()), *arguments, "--output", "json"]

    def tried() -> dict[str, Any]:
        done = launched(line, {"PYTHONPATH": one.path, HISTORY: str(one.history)}, one.folder, one.world.place)
        ended = done.wait(_MARKERS)
        printed = [heard.event for heard in done.rest()]
        done.end(0.0)
        if ended == 0 and printed:
            return dict(printed[-1])
        code = str(printed[-1].get("error")) if printed else ""
        if code == PipelineRunning.code:
            return {}
        if code == BatchOpen.code:
            raise BatchOpen(str(printed[-1].get("what")))
        told = f"{' '.join(line[1:])} ended with {ended}: {printed}, {done.last_lines()}"
        raise Stuck(told.replace("\n", " "))

    return wait_until(tried, f"`tailrace offsets {command}` to be possible", 2 * LIMIT, every=0.5)


LIFE: Mapping[Strike, Callable[[Driven], None]] = {
    Strike.ISOLATION: _isolation,
    Strike.RESTORE: _restore,
    Strike.RENAME: _rename,
    Strike.HIDE: _hide,
    Strike.SWAP: _swap,
    Strike.MOVE: _move,
}
