"""The strikes: what happens to a world's pipeline, its network and its registry while it works; and a list of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

from faults.worlds.broker_strikes import AWAY, BROKER
from faults.worlds.input_strikes import INPUT
from faults.worlds.pipeline import Driven
from faults.worlds.world import Strike
from tailrace.errors import InvariantBroken

# Seconds. Brokers refuse records from more than an hour ahead, and delete those that are older than a week.
_JUMPS = (50 * 60, -86_400, 0)


def strike(one: Driven, kind: Strike) -> None:
    """Do it, while the pipeline has work."""
    one.work("a batch before the strike")
    STRIKES[kind](one)


def _kill(one: Driven) -> None:
    one.expected = True
    one.driver.kill()


def _pause(one: Driven) -> None:
    first, tree = one.driver, one.tree()
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.suspend()
    try:
        one.start()
        one.work("a batch of the second driver")
    finally:
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.resume()
    one.fenced(first)


def _rival(one: Driven) -> None:
    first = one.driver
    if first.code is None:
        one.start()
        one.fenced(first)


def _restart(one: Driven) -> None:
    one.stop()
    one.start()


def _resize(one: Driven) -> None:
    one.stop()
    one.settings = _others(one)
    one.start()


def _others(one: Driven) -> dict[str, dict[str, int]]:
    return {
        "sink": {"partitions": one.chance.choice((1, 2, 5, 11))},
        "batch": {"max_records": int(one.world.max_records * one.chance.choice((0.4, 1, 3)))},
    }


def _deploy(one: Driven) -> None:
    """Start other code with other settings on what a killed driver left.

    If an open batch refuses them, do what the refusal says: let the old settings finish it first.
    """
    before = one.settings
    one.expected = True
    one.driver.kill()
    one.change_code()
    one.settings = _others(one)
    one.start()
    if not one.accepted():
        now, one.settings = one.settings, before
        one.start()
        one.work("the batch that refused the other settings")
        one.stop()
        one.settings = now
        one.start()


def _clock(one: Driven) -> None:
    one.clock.set(one.chance.choice(_JUMPS))


def _cut(one: Driven) -> None:
    one.proxied.proxy.cut()


def _outage(one: Driven, silent: bool = False) -> None:
    one.proxied.proxy.outage(silent=silent)
    try:
        one.wait(AWAY)
    finally:
        one.proxied.proxy.heal()


def _silence(one: Driven) -> None:
    _outage(one, silent=True)


def _registry(one: Driven) -> None:
    if one.schemas is None:
        raise InvariantBroken("only a world with a registry can lose it")
    one.schemas.broken = True
    try:
        _kill(one)
        one.wait(AWAY)
    finally:
        one.schemas.broken = False


STRIKES: Mapping[Strike, Callable[[Driven], None]] = {
    **BROKER,
    **INPUT,
    Strike.KILL: _kill,
    Strike.PAUSE: _pause,
    Strike.RIVAL: _rival,
    Strike.RESTART: _restart,
    Strike.RESIZE: _resize,
    Strike.DEPLOY: _deploy,
    Strike.CLOCK: _clock,
    Strike.CUT: _cut,
    Strike.OUTAGE: _outage,
    Strike.SILENCE: _silence,
    Strike.REGISTRY: _registry,
}
