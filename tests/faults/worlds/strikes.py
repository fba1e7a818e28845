"""The strikes: what happens to a world's pipeline, its brokers, its network and its registry while it works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from faults.scenarios.brokers import in_sync
from faults.worlds.pipeline import Driven
from faults.worlds.world import Strike
from tailrace.errors import InvariantBroken

_AWAY = 3.0  # seconds for which something is away


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
    one.settings = {
        "sink": {"partitions": one.chance.choice((1, 2, 5, 11))},
        "batch": {"max_records": int(one.world.max_records * one.chance.choice((0.4, 1, 3)))},
    }
    one.start()


def _broker(one: Driven) -> None:
    broker = one.chance.choice(one.context.kafka.brokers)
    broker.kill()
    one.wait(_AWAY)
    broker.start()


def _freeze(one: Driven) -> None:
    broker = one.chance.choice(one.context.kafka.brokers)
    broker.pause()
    try:
        one.wait(_AWAY)
    finally:
        broker.resume()


def _election(one: Driven) -> None:
    broker = one.chance.choice(one.context.kafka.brokers)
    broker.stop()
    broker.start()
    in_sync(one.context)
    # The restart moved its leaders away; the election brings them back, including the coordinators.
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})
    topics = admin.list_topics(timeout=20).topics
    places = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    admin.elect_leaders(ElectionType.PREFERRED, places).result(timeout=60)


def _grow(one: Driven) -> None:
    count = len(one.counts) + 2
    admin = AdminClient({"bootstrap.servers": one.context.bootstrap})
    admin.create_partitions([NewPartitions(one.source, count)])[one.source].result(30)
    one.wait(1.0)
    one.write(dict.fromkeys(range(count - 2, count), one.world.max_records))


def _cut(one: Driven) -> None:
    one.proxied.proxy.cut()


def _outage(one: Driven, silent: bool = False) -> None:
    one.proxied.proxy.outage(silent=silent)
    try:
        one.wait(_AWAY)
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
        one.wait(_AWAY)
    finally:
        one.schemas.broken = False


STRIKES: Mapping[Strike, Callable[[Driven], None]] = {
    Strike.KILL: _kill,
    Strike.PAUSE: _pause,
    Strike.RIVAL: _rival,
    Strike.RESTART: _restart,
    Strike.RESIZE: _resize,
    Strike.BROKER: _broker,
    Strike.FREEZE: _freeze,
    Strike.ELECTION: _election,
    Strike.GROW: _grow,
    Strike.CUT: _cut,
    Strike.OUTAGE: _outage,
    Strike.SILENCE: _silence,
    Strike.REGISTRY: _registry,
}
