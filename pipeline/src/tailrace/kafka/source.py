"""The source topics as the brokers know them: their partitions, their ends, and a pipeline's start positions.

Spark's reader interprets `auto.offset.reset` in its own way; here it means what it means in Kafka.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tailrace import errors
from tailrace.config import Isolation, OnDataLoss, Pipeline, Reset
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import denied
from tailrace.kafka.leaders import CUT_OFF
from tailrace.kafka.rights import Operation, on_topic
from tailrace.kafka.topics import agreed_ids, by_name

T = TypeVar("T")
Places = tuple[tuple[str, int], ...]

# Seconds for which the brokers must repeat that something is lost. By default they count one of themselves as dead
# after 9 s; until then, one that is cut off may be asked.
CERTAIN_AFTER = 10.0
_ASK_EVERY = 0.2
_AGREE_WITHIN = 60.0


def partitions_of(pipeline: Pipeline, cluster: Cluster) -> list[tuple[str, int]]:
    """Return every topic partition that the pipeline reads now."""
    source = pipeline.source
    if source.pattern is None:
        counts = cluster.require(source.topics, "source topic")
    else:
        ours = {pipeline.rejected_topic, pipeline.ledger.topic, *pipeline.sink.named}
        counts = cluster.matching(source.pattern)
        overlap = sorted(topic for topic in counts if topic in ours)
        if overlap:
            raise errors.ConfigInvalid(
                f"source.pattern {source.pattern!r} matches {overlap[0]!r}, which the pipeline writes to",
                kept="nothing was read or written",
                then="narrow the pattern",
            )
        if not counts:
            raise errors.TopicUnknown(
                f"no topic matches source.pattern {source.pattern!r}",
                kept="nothing was read or written",
                then="create a topic that matches, or correct the pattern",
            )
    return [(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]


def beginning(pipeline: Pipeline, cluster: Cluster) -> TopicPartitions:
    """Return where a pipeline without stored offsets begins."""
    places = partitions_of(pipeline, cluster)
    earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
    return cluster.earliest(places) if earliest else ends(pipeline, places, cluster)


@dataclass(frozen=True)
class Topics:
    """The source topics in one answer of the brokers."""

    found: dict[str, tuple[str, int]]  # with their ids and numbers of partitions
    hidden: frozenset[str]  # which may not be described: they may exist or not
    unknown: frozenset[str]  # which do not exist, as far as the broker knows that answered


def topics(pipeline: Pipeline, cluster: Cluster, known: Iterable[str] = ()) -> Topics:
    """Return the topics that the pipeline reads; ask by name for the known ones that are not listed.

    The list of all topics leaves out those that may not be described, as if they did not exist.
    """
    asked = {topic for topic, _ in partitions_of(pipeline, cluster)}
    asked |= {topic for topic in known if reads(pipeline, topic)}
    found, hidden = by_name(cluster.admin, asked)
    return Topics(found, hidden, frozenset(asked - found.keys() - hidden))


def ids(pipeline: Pipeline, cluster: Cluster, planned: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the source topics, other ones than planned if the brokers agree on them."""
    return _agreed(lambda: topics(pipeline, cluster).found, planned)


def ids_of(names: Iterable[str], cluster: Cluster, planned: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of those of these topics that exist, other ones than planned if the brokers agree on them."""
    asked = sorted(names)
    return _agreed(lambda: by_name(cluster.admin, asked)[0], planned)


def _agreed(ask: Callable[[], Mapping[str, tuple[str, int]]], planned: Mapping[str, str]) -> dict[str, str]:
    """Ask for ids until none is another one than planned, or no answer has contradicted another for long enough.

    A broker that lags shows the id of a topic that was deleted before the planned one was created.
    """

    def answer() -> dict[str, str]:
        return {topic: name for topic, (name, _) in ask().items()}

    found = answer()
    begun = since = time.monotonic()
    if all(planned.get(*each) == each[1] for each in found.items()):
        return found
    while time.monotonic() - since < CERTAIN_AFTER:
        if time.monotonic() - begun > _AGREE_WITHIN:
            raise errors.KafkaFailed(
                f"the brokers have contradicted each other about the ids of {', '.join(sorted(found)[:5])} for "
                f"{time.monotonic() - begun:.0f} s",
                kept="nothing was read or written",
                then=CUT_OFF,
            )
        time.sleep(_ASK_EVERY)
        now = answer()
        if any(found.get(*each) != each[1] for each in now.items()):
            since = time.monotonic()
        found |= now
    return now


def sure_ids(names: Collection[str], cluster: Cluster) -> dict[str, str]:
    """Return the ids of topics that exist, as the brokers agree on them; raise BrokerUnreachable if they do not.

    For topics that no plan names yet: with the id of a former topic, or with none, the next start mistakes them.
    """
    until, wanted = time.monotonic() + CERTAIN_AFTER, set(names)
    agreed: dict[str, str] = {}
    while wanted:
        agreed = agreed_ids(cluster, wanted)
        lacking = sorted(wanted - agreed.keys())
        if not lacking:
            break
        if time.monotonic() > until:
            raise errors.BrokerUnreachable(
                f"the brokers do not agree on the id of {', '.join(lacking[:5])}",
                kept="everything that was delivered; nothing more was read",
                then=CUT_OFF,
            )
        time.sleep(_ASK_EVERY)
    return agreed


def described(names: Iterable[str], cluster: Cluster) -> tuple[dict[str, tuple[str, int]], frozenset[str]]:
    """Return those of these topics that exist, with their ids and numbers of partitions, and those that are hidden.

    The brokers are asked again for a while before a topic counts as neither.
    """
    asked = sorted(names)
    return _certain(lambda: by_name(cluster.admin, asked), lambda answer: len(answer[0]) + len(answer[1]) < len(asked))


def missing(pipeline: Pipeline, places: Iterable[tuple[str, int]], cluster: Cluster) -> tuple[frozenset[str], Places]:
    """Return the topics of these places that are hidden, and the other places that do not exist.

    The brokers are asked again for a while before something counts as gone: one that lags may not know it yet.
    """
    asked = sorted(places)
    present = set(partitions_of(pipeline, cluster))
    if present.issuperset(asked):
        return frozenset(), ()

    def ask() -> tuple[frozenset[str], Places]:
        seen = topics(pipeline, cluster, {topic for topic, _ in asked})
        counts = {topic: count for topic, (_, count) in seen.found.items()}
        gone = [(topic, number) for topic, number in asked if number >= counts.get(topic, 0)]
        return seen.hidden, tuple(place for place in gone if place[0] not in seen.hidden)

    return _certain(ask, lambda answer: any(reads(pipeline, topic) for topic, _ in answer[1]))


def within(
    pipeline: Pipeline, stored: TopicPartitions, cluster: Cluster, where: str = "the ledger"
) -> tuple[TopicPartitions, list[str]]:
    """Return the stored positions and notes on changes: those out of range are moved, if the pipeline allows it."""
    hidden, gone = missing(pipeline, stored, cluster)
    if hidden:
        raise denied(
            f"{where} has offsets of {', '.join(sorted(hidden)[:5])}, which may not be described",
            [on_topic(Operation.READ, topic) for topic in sorted(hidden)],
            "everything that was delivered; nothing more was read",
        )
    reset = pipeline.source.on_data_loss is OnDataLoss.RESET
    if gone and not reset:
        raise _without(pipeline, gone, where)
    here = {place: offset for place, offset in stored.items() if place not in gone}
    first = cluster.earliest(here)

    def bounds() -> tuple[TopicPartitions, TopicPartitions]:
        stable = ends(pipeline, here, cluster)
        return stable, stable | beyond(here, stable, cluster)

    last, tops = _certain(bounds, lambda found: any(offset > found[1][place] for place, offset in here.items()))
    short = [place for place, offset in here.items() if offset > tops[place]]
    if short:  # a broker that is cut off repeats its answer for as long as that lasts
        tops |= cluster.agreed_latest(short)
    notes = [
        f"{topic}-{number} {'no longer exists' if reads(pipeline, topic) else 'is no longer read'}"
        for topic, number in gone
    ]
    for place, offset in list(here.items()):
        if first[place] <= offset <= tops[place]:
            continue
        topic, number = place
        earliest = pipeline.source.auto_offset_reset is Reset.EARLIEST
        target = first[place] if earliest else last[place]
        held = f"the topic holds {first[place]} to {tops[place]}"
        what = f"{topic}-{number}: the next offset to read is {offset}, and {held}"
        if not reset:
            raise errors.OffsetsOutOfRange(
                what,
                kept="everything that was delivered; nothing more was read",
                then=f"set source.on_data_loss: reset to continue at {target} "
                f"(auto.offset.reset: {pipeline.source.auto_offset_reset.value}), or restore the topic",
            )
        here[place] = target
        notes.append(f"{what}; continuing at {target}")
    return here, notes


def _without(pipeline: Pipeline, gone: Places, where: str) -> errors.SourceChanged:
    """Return the error for stored offsets of partitions that are gone, or that the configuration does not read."""
    deleted = [f"{topic}-{number}" for topic, number in gone if reads(pipeline, topic)]
    unread = [f"{topic}-{number}" for topic, number in gone if not reads(pipeline, topic)]
    why = "no longer exist" if deleted else "the configuration no longer reads"
    return errors.SourceChanged(
        f"{where} has offsets for {', '.join((deleted or unread)[:5])}, which {why}",
        kept="everything that was delivered; nothing more was read",
        then=f"{'restore the topic' if deleted else 'read the topic again'}, or set source.on_data_loss: reset to "
        "continue without it",
    )


def _certain(question: Callable[[], T], doubtful: Callable[[T], bool]) -> T:
    """Ask until the answer is not in doubt, or was repeated for long enough to be believed."""
    answer, until = question(), time.monotonic() + CERTAIN_AFTER
    while doubtful(answer) and time.monotonic() < until:
        time.sleep(_ASK_EVERY)
        answer = question()
    return answer


def reads(pipeline: Pipeline, topic: str) -> bool:
    """Return whether the configuration names this topic."""
    pattern = pipeline.source.pattern
    return topic in pipeline.source.topics if pattern is None else re.fullmatch(pattern, topic) is not None


def ends(pipeline: Pipeline, places: Iterable[tuple[str, int]], cluster: Cluster) -> TopicPartitions:
    """Return where the source can read to now, at its isolation level."""
    return cluster.latest(places, pipeline.source.isolation is Isolation.READ_COMMITTED)


def beyond(positions: TopicPartitions, last: TopicPartitions, cluster: Cluster) -> TopicPartitions:
    """Return where the log itself ends, for the positions behind the end to which the source can read.

    A read_uncommitted run may stop behind an open transaction. A read_committed one waits there until it ends.
    """
    return cluster.latest([place for place, offset in positions.items() if offset > last.get(place, offset)])


def lag(pipeline: Pipeline, positions: TopicPartitions, cluster: Cluster) -> int:
    """Return the number of offsets between the positions and the ends of the topics."""
    last = ends(pipeline, positions, cluster)
    return sum(max(0, last[place] - offset) for place, offset in positions.items())
