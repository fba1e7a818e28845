"""Taking the transactional ids of sink partitions from whatever still writes for an older driver.

A fence ends what is in progress. It does not keep a task that Spark tries again from taking the id back and writing a
batch whose plan it knows. If the batch is to be delivered, that is right. If it was given up, only a marker refuses it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from tailrace import errors
from tailrace.kafka.clients import add_offsets, taken, told
from tailrace.kafka.errors import is_fenced, translate
from tailrace.kafka.informed_reader import Informed, InformedReader
from tailrace.kafka.pending_offsets import Stored
from tailrace.kafka.rights import Operation, on_groups, on_topic, on_transactions
from tailrace.progress.marker import Marker, transactional_id
from tailrace.progress.plan import SinkPartition

_AT_ONCE = 16  # sink partitions; each may wait half a second for an abort
_LIMIT = 30.0
# Of a driver's own transactions, which are short unless a broker is down. Brokers may allow no longer ones.
TRANSACTION_TIMEOUT = 30.0
_TRIES = 3  # to end a transaction soon after its question was answered


def fence(options: Mapping[str, Any], pipeline: str, parts: Iterable[int]) -> None:
    """Take the transactional id of each sink partition once."""

    def one(number: int) -> None:
        _taken(options, pipeline, SinkPartition(number))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        collections.deque(threads.map(one, parts), maxlen=0)


def give_up(
    options: Mapping[str, Any],
    pipeline: str,
    reader: InformedReader,
    ledger: str,
    parts: Iterable[SinkPartition],
    marker: Marker,
    known: Mapping[SinkPartition, Marker],
) -> None:
    """Commit this marker in each sink partition; raise PipelineRunning if one has another marker than is known.

    `reader` is of the group of markers.
    """
    rights = [on_groups(pipeline), on_transactions(pipeline), on_topic(Operation.READ, ledger)]

    def one(number: SinkPartition) -> None:
        doing = f"giving up sink partition {number} of {pipeline!r}"
        place = TopicPartition(ledger, number)
        try:
            producer, informed = _informed(options, pipeline, reader, place, doing)
        except KafkaException as error:
            if is_fenced(error):
                raise written_meanwhile(pipeline) from error
            raise translate(error, doing, kept="the offsets were not changed", rights=rights) from error
        [found] = reader.read([place], doing, rights, _LIMIT, informed.consumer)
        if _marker(found) != known.get(number):
            raise written_meanwhile(pipeline)
        try:
            producer.begin_transaction()
            place = TopicPartition(ledger, number, marker.next, marker.metadata)
            add_offsets(producer, [place], reader.metadata, _LIMIT, doing)
            # The broker that told the marker may have lost the group before.
            if not reader.confirms(informed.consumer, [place], _LIMIT, lambda told: _marker(told) == known.get(number)):
                raise written_meanwhile(pipeline)
            told(producer, lambda: producer.commit_transaction(_LIMIT))
        except KafkaException as error:
            if is_fenced(error):
                raise written_meanwhile(pipeline) from error
            raise translate(error, doing, kept="the offsets were not changed", rights=rights) from error

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        collections.deque(threads.map(one, parts), maxlen=0)


def markers(
    options: Mapping[str, Any], pipeline: str, reader: InformedReader, ledger: str, partitions: int
) -> dict[SinkPartition, Marker]:
    """Return all markers as they are, and not as a broker remembers them that has lost their group.

    One broker has the whole group, so one sink partition's transaction is enough to know it by.
    """
    doing, rights = f"reading the markers of {pipeline!r}", [on_groups(pipeline), on_transactions(pipeline)]
    for left in reversed(range(_TRIES)):
        try:
            _, informed = _informed(options, pipeline, reader, TopicPartition(ledger, 0), doing)
            break
        except KafkaException as error:
            if not left or not is_fenced(error):  # by a task of an older driver that is tried again, or by its gateway
                raise translate(error, doing, kept="nothing was read or written", rights=rights) from error
    places = [TopicPartition(ledger, number) for number in range(partitions)]
    found = reader.read(places, doing, [*rights, on_topic(Operation.READ, ledger)], 2 * _LIMIT, informed.consumer)
    read = {SinkPartition(each.partition): _marker(each) for each in found}
    return {number: marker for number, marker in read.items() if marker is not None}


def _informed(
    options: Mapping[str, Any], pipeline: str, reader: InformedReader, place: TopicPartition, doing: str
) -> tuple[Producer, Informed]:
    """Take a sink partition's transactional id; return its producer, and a client whose broker knows its marker."""
    number = SinkPartition(place.partition)
    producer = _taken(options, pipeline, number)
    for _ in range(_TRIES):
        informed = reader.inform(producer, place, _LIMIT, doing)
        # The next one ends its open transaction. Nobody else commits under this id without fencing it first.
        producer = _taken(options, pipeline, number)
        if informed.recent:
            break
    return producer, informed


def _marker(found: TopicPartition | Stored) -> Marker | None:
    return Marker.read(found.offset, found.metadata)


def written_meanwhile(pipeline: str) -> errors.PipelineRunning:
    """Return the error for a sink partition that was written while a command was about to change the offsets."""
    return errors.PipelineRunning(
        f"a sink partition of {pipeline!r} was written while this command was reading its state",
        kept="the offsets were not changed",
        then="repeat this command",
    )


def unended(doing: str, seconds: float) -> errors.KafkaFailed:
    """Return the error for a driver that no broker tells whether it still leads."""
    return errors.KafkaFailed(
        f"{doing}: no broker has ended an earlier transaction within {seconds:.0f} s; they abort one after "
        f"{TRANSACTION_TIMEOUT:.0f} s",
        kept="nothing of the batch was written",
        then="start the pipeline again; if this repeats: tailrace doctor FILE",
    )


def _taken(options: Mapping[str, Any], pipeline: str, number: SinkPartition) -> Producer:
    name = transactional_id(pipeline, number)
    timeout = {"transaction.timeout.ms": int(TRANSACTION_TIMEOUT * 1000)}
    made = [Producer({**options, "transactional.id": name, "retry.backoff.ms": 5, **timeout})]
    return taken(made, f"fencing {name!r}", _LIMIT, [on_transactions(pipeline)])
