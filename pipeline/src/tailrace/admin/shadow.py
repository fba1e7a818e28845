"""A shadow: a second pipeline that reads what the live one reads, from where it is now, into a topic of its own.

It has its own name, so its own groups, transactional ids and plans: it cannot disturb the live pipeline, of which this
module only reads the ledger and the sink. An output does not say which input it was made of, so the compared range is
bounded by end offsets of both sinks, taken before and after looking into the ledger (decision 0038).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace.admin.copies import shadow_group
from tailrace.admin.difference import Difference, Entry, compare
from tailrace.admin.offsets import apply, look, movable
from tailrace.admin.targets import targets
from tailrace.config import Isolation, Offsets, Pipeline
from tailrace.errors import ConfigInvalid, NotComparable, OptionRefused
from tailrace.kafka import source
from tailrace.kafka.clients import client_options, committed
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import translate
from tailrace.kafka.reader import Range, read_ranges
from tailrace.kafka.rights import on_group
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import Plan
from tailrace.progress.positions import Positions, begins, named
from tailrace.progress.stores import OffsetStore

_KEPT = "nothing was changed"
_READS = "both pipelines are unaffected: this command only reads"
_POLL = 0.3
_UNSURE = "unsure"  # the metadata of bounds while the shadow's offsets are moved
_BEGIN = "tailrace shadow begin FILE --live NAME --sink TOPIC, then: tailrace run FILE"


@dataclass(frozen=True)
class Live:
    """The pipeline that a shadow is compared with."""

    name: str
    sink: str


def refuse(shadow: Pipeline, live: Live) -> None:
    """Refuse a shadow that would write where the live pipeline does, or that cannot be compared."""
    if shadow.pipeline == live.name:
        raise OptionRefused(
            f"the file's pipeline is {live.name!r} itself, and would take over",
            kept=_KEPT,
            then=f"give the shadow a name of its own in the file: pipeline: {live.name}-shadow",
        )
    if shadow.sink.topic is None or shadow.sink.topics:
        raise ConfigInvalid(
            f"the rows of pipeline {shadow.pipeline!r} name their own topics, so they would reach the live ones",
            kept=_KEPT,
            then="set sink.topic to a topic of the shadow's own",
        )
    if live.sink == shadow.sink.topic:
        raise OptionRefused(
            f"{shadow.pipeline!r} writes to {live.sink!r}, the live pipeline's sink",
            kept=_KEPT,
            then=f"give it a topic of its own: sink.topic: {live.sink}-shadow",
        )
    if shadow.rejected is not None:
        raise ConfigInvalid(
            f"pipeline {shadow.pipeline!r} names a topic of rejected records, which may be the live pipeline's",
            kept=_KEPT,
            then=f"leave `rejected` out of the shadow's file: it gets a topic of its own, {shadow.pipeline}.rejected",
        )
    if shadow.checkpoint != "ledger":
        raise ConfigInvalid(
            f"pipeline {shadow.pipeline!r} is stateful: its outputs depend on records before the shadow begins",
            kept=_KEPT,
            then="run it from the beginning under another name and with another checkpoint, and compare by hand",
        )
    if shadow.offsets != Offsets():
        raise ConfigInvalid(
            f"pipeline {shadow.pipeline!r} has a section `offsets`, and the live pipeline says where a shadow begins",
            kept=_KEPT,
            then="leave `offsets` out of the shadow's file",
        )
    _refuse_own_input(shadow)


def _refuse_own_input(shadow: Pipeline) -> None:
    """Refuse a shadow that reads a topic it writes: the live pipeline has the same input, and would read it too."""
    ways_out = {
        shadow.sink.topic or "": "set sink.topic to a topic that the pattern does not match",
        shadow.rejected_topic: "give the shadow a name whose topic NAME.rejected the pattern does not match, or narrow "
        "the pattern in both files",
    }
    for topic, then in ways_out.items():
        if source.reads(shadow, topic):
            raise ConfigInvalid(
                f"source.pattern {shadow.source.pattern!r} matches {topic!r}, which {shadow.pipeline!r} would write, "
                "so the live pipeline would read it",
                kept=_KEPT,
                then=then,
            )


def finished(plan: Plan) -> Positions:
    """Return up to where everything is delivered: a plan is written only after the batch before it was."""
    return dict(plan.ends) if plan.done else begins(plan, plan.ends)


def begin(
    shadow: Pipeline,
    live: Live,
    cluster: Cluster,
    ledger: Ledger,
    store: OffsetStore,
    limit: float,
    *,
    again: bool = False,
) -> Positions:
    """Let the shadow's next start read from where the live pipeline's last plan ends; return these offsets.

    `again`: the caller knows that a pipeline of this name was a shadow. Its bounds need not show that: the brokers
    delete them after `offsets.retention.minutes`, and another live sink has none.
    """
    refuse(shadow, live)
    count = cluster.require([live.sink], "the live pipeline's sink topic")[live.sink]
    now = look(shadow, cluster, ledger, store)
    ran = now.plan is not None or now.lost
    if ran and not again and not _begun(shadow, [(live.sink, number) for number in range(count)]):
        raise OptionRefused(
            f"pipeline {shadow.pipeline!r} has run before, and nothing shows that it was a shadow of a pipeline that "
            f"writes to {live.sink!r}: its own offsets would be lost",
            kept=_KEPT,
            then="if it was a shadow that began long ago or for another sink, repeat the command with --again; if not, "
            "give the shadow a name that no pipeline has had",
        )
    movable(shadow, now, "FILE", give_up=True)  # what an earlier shadow left open is given up
    # In this order: every output of an input behind the plan is behind these offsets.
    first = _ends(cluster, live.sink)
    start = dict(_plan(ledger, live.name, _KEPT).ends)
    _same_input(shadow, cluster, start)
    _until(ledger, live.name, start, limit, _KEPT)
    last = _ends(cluster, live.sink)
    own = shadow.sink.topic or ""
    cluster.ensure(own, count, shadow.ledger.replication, {})
    bounds = [TopicPartition(live.sink, number, last[number], str(first[number])) for number in first]
    bounds += [TopicPartition(own, number, offset, str(offset)) for number, offset in _ends(cluster, own).items()]
    target = targets(shadow, cluster, {}, start, alone=True)
    # Neither the former bounds nor the new ones say where the outputs begin until the offsets are known to be moved.
    unsure = [TopicPartition(each.topic, each.partition, each.offset, _UNSURE) for each in bounds]
    _record(shadow, unsure, _KEPT)
    apply(shadow, cluster, now, target, ledger)
    _record(shadow, bounds, "the live pipeline is unaffected, and the shadow is not compared until it begins again")
    return start


def difference(
    shadow: Pipeline, live: Live, cluster: Cluster, ledger: Ledger, *, limit: float, most: int
) -> Difference:
    """Compare the outputs of the inputs that both have delivered since the shadow began."""
    refuse(shadow, live)
    own = shadow.sink.topic or ""
    topics = {live.sink: live.name, own: shadow.pipeline}
    cluster.require(topics, "sink topic")
    begun = _recorded(shadow, {topic: _ends(cluster, topic) for topic in topics})
    certain = {topic: _ends(cluster, topic) for topic in topics}
    planned = {name: dict(_plan(ledger, name, _READS).ends) for name in topics.values()}
    for name, other in ((live.name, shadow.pipeline), (shadow.pipeline, live.name)):
        _until(ledger, name, planned[other], limit, _READS)
    ends = {topic: _ends(cluster, topic) for topic in topics}
    ranges = {
        topic: {number: Range(begun[topic][number][0], end) for number, end in ends[topic].items()} for topic in topics
    }
    _readable(cluster, ranges, most)

    def entries(topic: str) -> Iterator[Entry]:
        filled = {number: each for number, each in ranges[topic].items() if each.end > each.start}
        for each in read_ranges(shadow.kafka, topic, filled, isolation=Isolation.READ_COMMITTED):
            sure = begun[topic][each.partition][1] <= each.offset < certain[topic].get(each.partition, 0)
            yield Entry(each.key, each.value, sure)

    return compare(entries(live.sink), entries(own))


def _ends(cluster: Cluster, topic: str) -> dict[int, int]:
    places = [(topic, number) for number in range(cluster.require([topic], "topic")[topic])]
    return {number: offset for (_, number), offset in cluster.latest(places).items()}


def _plan(ledger: Ledger, name: str, kept: str) -> Plan:
    plan = ledger.latest(name)
    if not isinstance(plan, Plan):
        what = "it has planned no batch" if plan is None else "it is stateful"
        raise NotComparable(
            f"pipeline {name!r} cannot be compared: {what} in this ledger",
            kept=kept,
            then="correct its name, or let it deliver records first",
        )
    return plan


def _same_input(shadow: Pipeline, cluster: Cluster, start: Mapping[tuple[str, int], int]) -> None:
    reads = {topic for topic, _ in source.partitions_of(shadow, cluster)}
    known = {topic for topic, _ in start}
    if reads != known:
        raise ConfigInvalid(
            f"the shadow reads {', '.join(sorted(reads))}, and the live pipeline {', '.join(sorted(known))}",
            kept=_KEPT,
            then="let both read the same topics: otherwise their outputs say nothing about each other",
        )


def _until(ledger: Ledger, name: str, wanted: Positions, limit: float, kept: str) -> None:
    """Wait until a pipeline has delivered everything before these offsets."""
    until = time.monotonic() + limit
    while True:
        found = finished(_plan(ledger, name, kept))
        behind = sorted(place for place, offset in wanted.items() if found.get(place, 0) < offset)
        if not behind:
            return
        if time.monotonic() > until:
            shown = ", ".join(f"{named(place)} at {found.get(place, 0)} of {wanted[place]}" for place in behind[:5])
            raise NotComparable(
                f"pipeline {name!r} has not delivered the compared range within {limit:g} s: {shown}",
                kept=kept,
                then="let it run until it has caught up, and repeat this command, maybe with a longer --limit",
            )
        time.sleep(_POLL)


def _readable(cluster: Cluster, ranges: Mapping[str, Mapping[int, Range]], most: int) -> None:
    """Refuse ranges whose records are not all there, or too many."""
    for topic, each in ranges.items():
        earliest = cluster.earliest([(topic, number) for number in each])
        cut = sorted(number for number, found in each.items() if earliest[topic, number] > found.start)
        if cut:
            raise NotComparable(
                f"records to compare were deleted from {topic!r}: {len(cut)} partitions begin after the shadow did",
                kept=_READS,
                then="stop the shadow, begin it again, and compare sooner",
            )
    size = sum(found.end - found.start for each in ranges.values() for found in each.values())
    if size > most:
        raise NotComparable(
            f"{size:,} offsets are to be compared, and --most allows {most:,}",
            kept=_READS,
            then=f"repeat it with --most {size * 2}, with up to 300 bytes of disk for each, or begin the shadow again",
        )


def _member(shadow: Pipeline) -> Consumer:
    return Consumer(
        client_options(shadow.kafka) | {"group.id": shadow_group(shadow.pipeline), "enable.auto.commit": False}
    )


def _record(shadow: Pipeline, bounds: list[TopicPartition], kept: str) -> None:
    """Keep where the outputs begin in a group of the shadow's: up to the metadata's offset, an output may be older."""
    consumer = _member(shadow)
    try:
        consumer.commit(offsets=bounds, asynchronous=False)
    except KafkaException as error:
        doing = f"writing offsets of the group {shadow_group(shadow.pipeline)!r}"
        raise translate(error, doing, kept=kept, rights=[on_group(shadow_group(shadow.pipeline))]) from error
    finally:
        consumer.close()


def _begun(shadow: Pipeline, places: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Return the bounds that were kept for these partitions."""
    asked = [TopicPartition(topic, number) for topic, number in places]
    consumer = _member(shadow)
    try:
        found = committed(consumer, asked, "reading where the shadow began", [on_group(shadow_group(shadow.pipeline))])
    finally:
        consumer.close()
    return [each for each in found if each.offset >= 0]


def _recorded(shadow: Pipeline, present: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return where the outputs begin; a partition that is newer begins at 0."""
    places = [(topic, number) for topic, each in present.items() for number in each]
    made: dict[str, dict[int, tuple[int, int]]] = {
        topic: dict.fromkeys(each, (0, 0)) for topic, each in present.items()
    }
    found = _begun(shadow, places)
    if any(each.metadata == _UNSURE for each in found):
        raise NotComparable(
            f"the command that lets the shadow {shadow.pipeline!r} begin is still at work, or was interrupted",
            kept=_READS,
            then=f"stop the shadow if it runs, then: {_BEGIN}",
        )
    for each in found:
        made[each.topic][each.partition] = int(each.metadata or each.offset), each.offset
    if {each.topic for each in found} != set(present):
        raise NotComparable(
            f"no shadow {shadow.pipeline!r} of these topics has begun, or the brokers have deleted where it did",
            kept=_READS,
            then=_BEGIN,
        )
    return made
