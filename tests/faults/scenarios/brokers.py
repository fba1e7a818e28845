"""Kill, stop, pause and fill the disk of each of three brokers, and move their leaders, while a pipeline runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from faults.scenario import Context, Result, Scenario
from faults.supervision import proven
from support.drivers import Load
from support.supervised import Supervised
from tailrace.testing import wait_until
from tailrace.testing.broker import Broker

RATE = 1000
BACK_LIMIT = 120.0


@dataclass(frozen=True)
class Strike:
    """What is done to a broker, and how it is undone."""

    name: str
    do: Callable[[Broker], None]
    undo: Callable[[Broker], None]


def full(broker: Broker) -> None:
    """Stop the broker from writing to its files, as on a full disk; it then ends by itself."""
    psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (1, 1))
    wait_until(lambda: not broker.alive, f"broker {broker.node_id} to end because its disk is full", BACK_LIMIT)


STRIKES = (
    Strike("is killed -9, and restarted", Broker.kill, Broker.start),
    Strike("is stopped in order, and restarted", Broker.stop, Broker.start),
    Strike("is paused and resumed", Broker.pause, Broker.resume),
    Strike("runs out of disk space, ends, and is restarted with space", full, Broker.start),
)


def each_in_turn(context: Context) -> Sequence[Result]:
    """Strike each broker; the pipeline must continue while it is away, and when it is back."""
    found = []
    for strike in STRIKES:
        one = Supervised(context.bootstrap, context.bootstrap, context.folder / strike.do.__name__)
        with Load(one.direct, one.source, RATE) as load, one:
            one.more(number=3)
            for broker in context.kafka.brokers:
                strike.do(broker)
                try:
                    one.more(number=3)
                finally:
                    strike.undo(broker)
                in_sync(context)
                one.more()
            load.stop()
            one.drained(load)
        restarts = len(one.codes) - 1
        context.say(f"a broker {strike.name}: {restarts} restarts, codes {one.codes[:-1]}")
        row = f"each of three brokers {strike.name}"
        found.append(proven(one, row, runs=len(context.kafka.brokers), note=f"{restarts} restarts"))
    return found


def elections(context: Context) -> Sequence[Result]:
    """Move every leader, including the coordinators of transactions and groups, while the pipeline runs."""
    times = 4
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / "elections")
    admin = AdminClient({"bootstrap.servers": context.bootstrap})
    moved = 0
    with Load(one.direct, one.source, RATE) as load, one:
        one.more(number=3)
        for number in range(times):
            broker = context.kafka.brokers[number % len(context.kafka.brokers)]
            broker.stop()
            broker.start()
            in_sync(context)
            before = leaders(admin)
            # The restart moved its leaders away; the election brings them back, including the coordinators.
            admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(*place) for place in before]).result(timeout=60)
            moved += sum(before[place] != leader for place, leader in leaders(admin).items())
            one.more(number=2)
        load.stop()
        one.drained(load)
    if not moved:
        raise RuntimeError("no election moved a leader")
    return [proven(one, "leaders and coordinators re-elected", runs=times, note=f"{moved} leaders moved")]


def leaders(admin: AdminClient) -> dict[tuple[str, int], int]:
    """Find the leader of each partition."""
    topics = admin.list_topics(timeout=30).topics
    return {(name, number): each.leader for name, topic in topics.items() for number, each in topic.partitions.items()}


def in_sync(context: Context) -> None:
    """Wait until every partition has all its replicas."""
    admin = AdminClient({"bootstrap.servers": context.bootstrap})

    def full() -> bool:
        topics = admin.list_topics(timeout=30).topics.values()
        return all(len(each.isrs) == len(each.replicas) for topic in topics for each in topic.partitions.values())

    wait_until(full, "all replicas to be in sync", BACK_LIMIT, every=0.5)


SCENARIOS = (
    Scenario("brokers", "Brokers", "promised", each_in_turn, quick=False, brokers=3),
    Scenario("elections", "Brokers", "promised", elections, quick=False, brokers=3),
)
