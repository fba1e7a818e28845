"""Kafka's own verifiable producer and consumer feed and read a pipeline whose driver is killed again and again.

Every other scenario reads with librdkafka, which the pipeline uses too: a mistake of its own would be on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from faults.scenario import Context, Result, Scenario
from faults.transactions import beyond, open_after
from support.drivers import kill_tree
from support.supervised import Supervised
from support.verifiable import Said, VerifiableConsumer, VerifiableProducer

RATE = 300


def kills(context: Context) -> Sequence[Result]:
    """Kill the driver and all its processes, each time in mid-batch."""
    times = 2 if context.quick else 6
    one = Supervised(context.bootstrap, context.bootstrap, context.folder / "verifiable")
    producer = VerifiableProducer(one.folder, context.bootstrap, one.source, RATE)
    consumer = VerifiableConsumer(one.folder, context.bootstrap, one.sink)
    with producer, consumer, one:
        one.more(number=3)
        for _ in range(times):
            one.more("planned")
            kill_tree(one.runs[-1].process)
            one.more(number=2)
        sent = producer.finish()
        one.drained(producer)
        got = consumer.until(len(sent))
    lost, duplicated, reordered = compared(sent, got)
    context.say(f"{len(sent)} records sent, {len(got)} read, {times} kills")
    return [
        Result(
            "driver killed -9, between Kafka's verifiable producer and consumer",
            runs=times,
            records=len(sent),
            lost=lost,
            duplicated=duplicated,
            reordered=reordered,
            lingering=len(open_after(one.direct, one.name)),
            ids=len(beyond(one.direct, one.name, one.partitions)),
        )
    ]


def compared(sent: Sequence[Said], got: Sequence[Said]) -> tuple[int, int, int]:
    """Count what is lost, duplicated and out of order. Each value is written once."""
    times = Counter(each.value for each in got)
    known = {each.value: each for each in sent}
    lost = sum(value not in times for value in known)
    duplicated = sum(count - (value in known) for value, count in times.items())
    reordered = 0
    last: dict[tuple[int, int], int] = {}
    for each in got:
        if each.value in known:
            origin = known[each.value]
            way = origin.partition, each.partition
            reordered += origin.offset < last.get(way, -1)
            last[way] = max(origin.offset, last.get(way, -1))
    return lost, duplicated, reordered


SCENARIOS = (Scenario("verifiable", "Kills at random", "promised", kills),)
