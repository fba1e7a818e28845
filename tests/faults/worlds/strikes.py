"""The strikes against a world's pipeline, its network, its rights and its stores; and a list of all strikes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType  # type: ignore[attr-defined]

from faults.worlds.broker_strikes import AWAY, BROKER
from faults.worlds.configuration import others
from faults.worlds.excuses import Stuck, way_on_without
from faults.worlds.input_strikes import INPUT
from faults.worlds.life_strikes import LIFE
from faults.worlds.pipeline import LIMIT, Driven
from faults.worlds.rights import denied
from faults.worlds.world import Strike
from support.minio import Fault
from tailrace.demo.driver import Driver
from tailrace.errors import BrokerUnreachable, CutChanged, DriverFenced, InvariantBroken, TailraceError

# Seconds. Brokers refuse records from more than an hour ahead, and delete those that are older than a week.
_JUMPS = (50 * 60, -86_400, 0)
_NUDGE = 3.0
_EXPIRED = 45.0  # the brokers have aborted the ledger's transaction by then
_IN_BATCH = 0.4  # about as long as a driver in threads needs for a batch


def strike(one: Driven, kind: Strike) -> None:
    """Do it while the pipeline has work, at any moment of a batch."""
    leads = False
    while not leads:  # a driver that has only just replaced a crashed one does not
        one.work("a batch before the strike")
        starts = one.starts
        one.begin("a batch to strike")
        one.wait(one.chance.uniform(0.0, _IN_BATCH))
        leads = one.starts == starts and one.driver.code is None
    STRIKES[kind](one)


def _pause(one: Driven, start: Callable[[Driven], object] = Driven.start) -> None:
    first, tree = one.driver, one.tree()
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        start(one)
        one.work("a batch of the second driver")
    finally:
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.resume()
    # A request that was in progress when it was suspended has run out of time, before anybody could tell it more.
    _fenced(one, first, BrokerUnreachable)


def _rival(one: Driven, start: Callable[[Driven], object] = Driven.start) -> None:
    first = one.driver
    if first.code is None:
        start(one)
        # Brokers that were struck may not answer the older driver in time, so that it ends before it learns more.
        _fenced(one, first, DriverFenced if BROKER.keys().isdisjoint(one.world.strikes) else BrokerUnreachable)


def _fenced(one: Driven, first: Driver, other: type[TailraceError] = DriverFenced) -> None:
    """Wait until an older driver is fenced, or ends by the other error, a crash point, a signal, or lost input."""
    ends = nudged = time.monotonic()
    ends += LIMIT
    while first.code is None:
        one.step()
        if time.monotonic() - nudged > _NUDGE:  # an idle driver is fenced too, and finds out with its next plan
            nudged = time.monotonic()
            one.write({0: 10})
        if time.monotonic() > ends:
            raise Stuck("the older driver did not end")
    if (code := first.code) in (DriverFenced.exit_code, other.exit_code, -signal.SIGKILL):
        return
    error = first.failure()
    if not (one.gaps and way_on_without(error)):  # it may have found out first that input is gone
        raise Stuck(f"the older driver ended with {code}: {error}".replace("\n", " "))


def _replace(one: Driven) -> None:
    """Let other code and settings take over without stopping what runs."""
    one.chance.choice((_pause, _rival))(one, _start_others)


def _start_others(one: Driven) -> None:
    """Start other code with other settings; if an open batch refuses them, the ones before."""
    before, code = one.settings, one.change_code()
    one.settings = others(one.settings, one.world, one.chance)
    one.start()
    if not one.accepted(CutChanged):
        one.settings = before
        one.change_code(code)
        one.start()


def _restart(one: Driven) -> None:
    one.stop()
    one.start()


def _resize(one: Driven) -> None:
    one.stop()
    one.settings = others(one.settings, one.world, one.chance)
    one.start()


def _deploy(one: Driven) -> None:
    """Start other code with other settings on what a killed driver left.

    If an open batch refuses them, do what the refusal says: let the old settings finish it first. If nothing of it was
    delivered, it is chosen again, perhaps with fewer sink partitions than have open transactions.
    """
    before = one.settings
    one.kill()
    code = one.change_code()
    one.settings = others(one.settings, one.world, one.chance)
    one.start()
    if not one.accepted(CutChanged):
        one.change_code(code)
        one.finish(before, "the batch that refused the other settings")
        one.change_code(code + 1)
        one.start()


def _clock(one: Driven) -> None:
    one.clock.set(one.chance.choice(_JUMPS))


def _cut(one: Driven) -> None:
    one.proxied.proxy.cut()


def _outage(one: Driven, silent: bool = False) -> None:
    one.proxied.proxy.outage(silent=silent)
    try:
        one.wait(one.chance.choice((AWAY, AWAY, AWAY, _EXPIRED)))
    finally:
        one.proxied.proxy.restore()


def _silence(one: Driven) -> None:
    _outage(one, silent=True)


def _registry(one: Driven) -> None:
    schemas = one.outside.schemas
    if schemas is None:
        raise InvariantBroken("only a world with a registry can lose it")
    schemas.broken = True
    try:
        one.kill()
        one.wait(AWAY)
    finally:
        schemas.broken = False


def _store(one: Driven) -> None:
    store, fault = one.outside.store, one.chance.choice((Fault.REFUSE, Fault.CUT))
    if store is None:
        raise InvariantBroken("only a world with an object store can lose it")
    store.judge = lambda method, path: fault
    try:
        one.wait(AWAY)
    finally:
        store.judge = lambda method, path: None


def _rights(one: Driven) -> None:
    """Deny one right to the pipeline's user."""
    kind, name, operation = one.chance.choice(
        (
            (ResourceType.TOPIC, one.source, AclOperation.READ),
            (ResourceType.TOPIC, one.sink, AclOperation.WRITE),
            (ResourceType.TOPIC, one.ledger, AclOperation.READ),
            (ResourceType.TOPIC, one.ledger, AclOperation.WRITE),
            (ResourceType.TRANSACTIONAL_ID, f"tailrace.{one.name}.", AclOperation.WRITE),
            (ResourceType.GROUP, f"tailrace.{one.name}.", AclOperation.READ),
        )
    )
    how = ResourcePatternType.LITERAL if kind is ResourceType.TOPIC else ResourcePatternType.PREFIXED
    with denied(one.context.bootstrap, kind, name, how, operation):
        one.wait(AWAY)


STRIKES: Mapping[Strike, Callable[[Driven], None]] = {
    **BROKER,
    **INPUT,
    **LIFE,
    Strike.KILL: Driven.kill,
    Strike.PAUSE: _pause,
    Strike.RIVAL: _rival,
    Strike.REPLACE: _replace,
    Strike.RESTART: _restart,
    Strike.RESIZE: _resize,
    Strike.DEPLOY: _deploy,
    Strike.CLOCK: _clock,
    Strike.CUT: _cut,
    Strike.OUTAGE: _outage,
    Strike.SILENCE: _silence,
    Strike.REGISTRY: _registry,
    Strike.RIGHTS: _rights,
    Strike.STORE: _store,
}
