"""Which broker leads a partition, and how many a topic has, as each of the brokers knows it.

A broker that is cut off from the others takes itself for the leader until it hears of the next one, and tells clients
so. The others know better. So each broker is asked by its id: left to itself, librdkafka asks any of them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from confluent_kafka import KafkaException

from tailrace import errors
from tailrace.kafka.described_topics import Described, described_by
from tailrace.kafka.errors import UNKNOWN_TOPIC

_AT_ONCE = 16  # brokers that are asked at the same time
_MISSING = None  # the leader of a partition that does not exist
CUT_OFF = "start the pipeline again; if this repeats, look for a broker that is cut off from the others"


@dataclass(frozen=True)
class Leaders:
    """What the brokers say; those that do not answer are left out of `told`."""

    asked: int
    told: Mapping[int, int | None]  # by broker: the leader that it names, -1 without one

    def agreed(self, place: str, kept: str, then: str) -> int | None:
        """Return the leader that they agree on; None if they agree that the partition, `place`, does not exist.

        Raise KafkaFailed unless more than half have answered, all of these the same, and the leader among them.
        """
        most = 2 * len(self.told) > self.asked and len(set(self.told.values())) == 1
        leader = next(iter(self.told.values()), _MISSING)
        if not most or (leader is not _MISSING and leader not in self.told):
            what = f"the brokers do not agree on which of them leads {place}: {self}"
            raise errors.KafkaFailed(what, kept=kept, then=then)
        return leader

    def __str__(self) -> str:
        said = [
            f"broker {broker} says {'that it does not exist' if leader is _MISSING else leader}"
            for broker, leader in sorted(self.told.items())
        ]
        return ", ".join([*said, f"{self.asked - len(self.told)} of {self.asked} do not answer"])


def leaders(instance: int, brokers: Collection[int], topic: str, partition: int, limit: float) -> Leaders:
    """Ask each of these brokers through an instance of librdkafka; raise KafkaException if none answers."""
    return leaders_in(instance, brokers, [(topic, partition)], limit)[topic, partition]


def leaders_in(
    instance: int, brokers: Collection[int], places: Collection[tuple[str, int]], limit: float
) -> dict[tuple[str, int], Leaders]:
    """Ask for the leaders of several partitions; one request for all topics, as a silent broker costs the limit."""
    wanted: dict[str, list[int]] = {}
    for topic, number in places:
        wanted.setdefault(topic, []).append(number)
    told: dict[tuple[str, int], dict[int, int | None]] = {place: {} for place in places}
    for broker, described in _all_described(instance, brokers, sorted(wanted), limit).items():
        for found in described:
            if found.error and found.error not in UNKNOWN_TOPIC:
                continue
            for number in wanted[found.name]:
                there = not found.error and number < found.partitions
                told[found.name, number][broker] = found.leaders[number] if there else _MISSING
    return {place: Leaders(len(brokers), said) for place, said in told.items()}


def most_partitions(instance: int, brokers: Collection[int], topic: str, limit: float) -> int | None:
    """Return the largest number of partitions that a broker knows of a topic; None if half of them do not tell."""
    told = [each.partitions for each in _described(instance, brokers, topic, limit).values() if not each.error]
    return max(told) if 2 * len(told) > len(brokers) else None


def same_ids(instance: int, brokers: Collection[int], topics: Sequence[str], limit: float) -> dict[str, str]:
    """Return the ids of those topics that more than half of the brokers tell, and none tells otherwise."""
    told: dict[str, list[str]] = {}
    for answer in _all_described(instance, brokers, topics, limit).values():
        for each in answer:
            told.setdefault(each.name, []).append(each.topic_id)
    return {name: ids[0] for name, ids in told.items() if 2 * len(ids) > len(brokers) and {*ids} == {ids[0]} and ids[0]}


def _described(instance: int, brokers: Collection[int], topic: str, limit: float) -> dict[int, Described]:
    """Ask each broker for its description of a topic; raise KafkaException if none answers."""
    return {broker: found for broker, [found] in _all_described(instance, brokers, [topic], limit).items()}


def _all_described(
    instance: int, brokers: Collection[int], topics: Sequence[str], limit: float
) -> dict[int, list[Described]]:
    end = time.monotonic() + limit
    failures: list[KafkaException] = []

    def ask(broker: int) -> dict[int, list[Described]]:
        try:
            return {broker: described_by(broker, instance, topics, max(0.1, end - time.monotonic()))}
        except KafkaException as error:
            failures.append(error)
            return {}

    told: dict[int, list[Described]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in pool.map(ask, brokers):
            told |= each
    if failures and not told:
        raise failures[0]
    return told
