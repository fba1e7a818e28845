"""The strikes against the brokers: one of them away, all of them in turn, their leaders and replicas elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from faults.scenarios.brokers import full, in_sync
from faults.worlds.pipeline import Driven
from faults.worlds.world import Strike
from support.proxy import brokerless
from support.reassign import reassign
from tailrace.testing.broker import Broker

AWAY = 3.0  # seconds for which something is away; as long as a broker may be silent and keep what it leads
_REPLACED = 9.0  # the others have taken over what it led, and it does not know
LATE = 0.2  # seconds until a slow broker answers
_OF_KAFKA = ("__consumer_offsets", "__transaction_state")


def _admin(one: Driven) -> AdminClient:
    return AdminClient({"bootstrap.servers": one.context.bootstrap})


def _away(one: Driven, do: Callable[[Broker], None], undo: Callable[[Broker], None]) -> None:
    """Do this to one of the brokers, and undo it some seconds later, whatever happens."""
    broker = one.chance.choice(one.context.kafka.brokers)
    do(broker)
    try:
        one.wait(one.chance.choice((AWAY, _REPLACED)))
    finally:
        undo(broker)


def _split(one: Driven) -> None:
    proxy = one.chance.choice(list(one.proxied.between.values()))
    proxy.outage(silent=one.chance.random() < 0.5)
    try:
        one.wait(AWAY)
    finally:
        proxy.heal()


def _slow(one: Driven) -> None:
    broker = one.chance.choice(one.context.kafka.brokers)
    one.proxied.proxy.late = {broker.node_id: LATE}
    one.wait(AWAY)


def _unlisted(one: Driven) -> None:
    """A client that asks meanwhile has nobody left to ask, and must be replaced."""
    one.proxied.proxy.judge = brokerless
    one.wait(AWAY)
    one.proxied.proxy.judge = lambda request: None


def _rolling(one: Driven) -> None:
    for broker in one.context.kafka.brokers:
        broker.stop()
        broker.start()
        in_sync(one.context)
        one.wait(0.5)


def _few(one: Driven) -> None:
    with _all_replicas_needed(one):
        _away(one, Broker.stop, Broker.start)
        in_sync(one.context)


@contextmanager
def _all_replicas_needed(one: Driven) -> Iterator[None]:
    """For a while, accept a write only if every replica has it."""
    count = str(len(one.context.kafka.brokers))
    _set(one, AlterConfigOpType.SET, count)
    try:
        yield
    finally:
        _set(one, AlterConfigOpType.DELETE, None)


def _set(one: Driven, how: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry("min.insync.replicas", value, incremental_operation=how)
    resources = [
        ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for topic in (one.sink, one.ledger, *_OF_KAFKA)
    ]
    admin = _admin(one)
    for answer in admin.incremental_alter_configs(resources).values():
        answer.result(30)


def _elect(one: Driven) -> None:
    """Give each partition back to its preferred leader, including the coordinators."""
    admin = _admin(one)
    topics = admin.list_topics(timeout=20).topics
    places = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
    admin.elect_leaders(ElectionType.PREFERRED, places).result(timeout=60)


def _election(one: Driven) -> None:
    broker = one.chance.choice(one.context.kafka.brokers)
    broker.stop()
    broker.start()
    in_sync(one.context)
    _elect(one)  # the restart moved its leaders away; this brings them back


def _reassign(one: Driven) -> None:
    brokers = [each.node_id for each in one.context.kafka.brokers]
    moving = {one.source, one.sink, one.rejected, one.ledger, *_OF_KAFKA}
    topics = {name: topic for name, topic in _admin(one).list_topics(timeout=20).topics.items() if name in moving}
    for count in (len(brokers) - 1, len(brokers)):  # first one replica less, then one that must copy everything
        replicas = {
            name: {number: one.chance.sample(brokers, count) for number in topic.partitions}
            for name, topic in topics.items()
        }
        reassign(one.context.bootstrap, replicas)
        one.wait(0.5)
        in_sync(one.context)
    _elect(one)


BROKER: Mapping[Strike, Callable[[Driven], None]] = {
    Strike.BROKER: partial(_away, do=Broker.kill, undo=Broker.start),
    Strike.FREEZE: partial(_away, do=Broker.pause, undo=Broker.resume),
    Strike.FULL: partial(_away, do=full, undo=Broker.start),
    Strike.ROLLING: _rolling,
    Strike.SLOW: _slow,
    Strike.SPLIT: _split,
    Strike.FEW: _few,
    Strike.UNLISTED: _unlisted,
    Strike.ELECTION: _election,
    Strike.REASSIGN: _reassign,
}
