"""A world, run: feed, start, strike, drain, stop; then everything is read and judged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from faults.proof import every_plan, plans, wrong_markers, wrong_ranges
from faults.reading import differences, exists, read_into, watching
from faults.scenario import Context
from faults.scenarios.brokers import in_sync
from faults.transactions import beyond, open_after
from faults.worlds.backfills import Backfill, feed_span
from faults.worlds.configuration import Outside
from faults.worlds.contents import Contents, found_wrong
from faults.worlds.encodings import IN_SCHEMA, heads_of
from faults.worlds.excuses import Stuck
from faults.worlds.history import Checked, check, checker
from faults.worlds.input_strikes import wait_for_ends
from faults.worlds.oracle import Outcome, judge
from faults.worlds.pipeline import LIMIT, Driven
from faults.worlds.replays import Replays
from faults.worlds.strikes import strike
from faults.worlds.world import LOSSES, Encoding, Input, Strike, World
from support.minio import minio, proxy
from support.registry import schema_registry
from tailrace.config import Kafka
from tailrace.kafka.clients import persist
from tailrace.kafka.cluster import Cluster

# Settings of the cluster that make a compacted topic lose records soon, and keep Kafka's own topics complete.
CLEANING = {
    "log.cleaner.enable": "true", "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str((1 << 20) + 1), "log.cleaner.min.compaction.lag.ms": str(2**63 - 1),
}  # fmt: skip
_COMPACTED: dict[str, object] = {
    "cleanup_policy": "compact,delete", "segment_ms": 100, "min_cleanable_dirty_ratio": 0.01,
    "min_compaction_lag_ms": 0,
}  # fmt: skip


def act(world: World, context: Context, package: Path | None = None) -> tuple[Outcome, int]:
    """Run a world; return what was found, and how many drivers were started.

    The drivers import `tailrace` from this folder, if one is given.
    """
    in_sync(context)  # a broker may have been struck in the world before
    topics = (
        context.topic("in", len(world.counts), **(_COMPACTED if world.input is Input.COMPACTED else {})),
        context.topic("out", world.outputs),
        context.topic("rejected", 1),
    )
    with ExitStack() as stack:
        registry = stack.enter_context(schema_registry()) if world.encoding is Encoding.REGISTRY else None
        if registry is not None:
            registry.add(IN_SCHEMA, f"{topics[0]}-value")
        store = None
        if Strike.STORE in world.strikes:
            behind = stack.enter_context(minio(context.folder / f"store-{topics[0]}"))
            store = stack.enter_context(proxy(behind.endpoint))
        watch = stack.enter_context(watching(context.bootstrap, topics[1], partial(heads_of, world)))
        one = Driven(world, context, watch, topics, package, Outside(registry, store))
        stuck = ""
        try:
            if world.knobs.late:
                _begin_late(one)
            parts = len(world.strikes) + 1
            span = feed_span(one, 1 / parts)
            one.start()
            one.start_backfill(span)
            for number, kind in enumerate(world.strikes, start=2):
                if number == parts:
                    _begin_replays(one)
                strike(one, kind)
                one.feed(number / parts)
            _begin_replays(one)
            one.drain()
            if one.replays is not None:
                _replay_the_rest(one, one.replays)
            one.stop()
        except Stuck as error:
            stuck = str(error)[:1000]
        finally:
            one.close(bool(stuck))
        outcome = judged(one, stuck)
    again = () if one.backfill is None else (one.backfill.sink, one.backfill.rejected)
    delete(context.bootstrap, (*topics, one.ledger, *again))
    return outcome, one.starts


def _begin_late(one: Driven) -> None:
    """Let a driver begin with an empty topic, and die: what comes before the next one is no less to be read."""
    one.start()
    one.work("a driver without input to be idle")
    one.kill()


def _begin_replays(one: Driven) -> None:
    """Replay what is rejected by now, beside the last strike if there is one."""
    if one.world.replays is not None and one.replays is None:
        one.work("a batch with records to replay")
        one.replays = Replays(one, one.world.replays)


def _replay_the_rest(one: Driven, replays: Replays) -> None:
    """Replay what has been rejected since, and let the pipeline read what was sent before it can be idle."""
    replays.begin()
    one.follow(lambda: replays.over, str(replays))
    wait_for_ends(one)
    one.write({0: 10})
    one.drain()


def delete(bootstrap: str, topics: Iterable[str]) -> None:
    """Delete a world's topics: each fetch of a replica costs CPU for every partition that its broker follows."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # no answer reaches a client that is gone

    def gone() -> None:
        for answer in admin.delete_topics(list(topics)).values():
            try:
                answer.result(30)
            except KafkaException as error:  # there may be no ledger
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    persist(gone, "deleting the topics of a world", LIMIT)


def judged(one: Driven, stuck: str) -> Outcome:
    """Read everything, and compare."""
    bootstrap = one.context.bootstrap
    lingering = [each for name in one.names for each in open_after(bootstrap, name)]
    output = read_into(Contents(one.world, one.source, rejected=False), bootstrap, one.sink)
    rejected = read_into(Contents(one.world, one.source, rejected=True), bootstrap, one.rejected)
    wrong, examples = found_wrong([output, rejected])
    # A driver that never got so far has no ledger.
    planned = plans(bootstrap, one.ledger, one.name) if exists(bootstrap, one.ledger) else {}
    last = max(planned, default=-1)
    unsteady = 0 if stuck else differences(one.watch.finish(), output.seen)
    unmarked = stuck or last < 0 or one.world.knobs.at_least_once
    markers = [] if unmarked else wrong_markers(bootstrap, one.name, one.ledger, last, planned[last].sinks)
    unread = stuck or last < 0 or (LOSSES | {Strike.RENAME}).intersection(one.world.strikes)
    ranges = [] if unread else wrong_ranges(planned, _ends(one))
    # A register that was set back, or has another name, has no history that the checker could explain.
    told = {Strike.RESTORE, Strike.RENAME}.isdisjoint(one.world.strikes)
    program = checker() if told else None
    history = check(program, one.history) if program is not None else Checked()
    again = one.replays.sent() if one.replays is not None else {}
    outcome = judge(one.world, one.counts, output.seen, rejected.seen, one.gaps, again=again)
    outcome = outcome.plus(_judged_backfill(one.backfill, one)) if one.backfill is not None else outcome
    return replace(
        outcome,
        wrong=outcome.wrong + wrong,
        unsteady=unsteady,
        lingering=outcome.lingering + len(lingering),
        ids=sum(len(_surplus(one, name)) for name in one.names),
        markers=len(markers),
        plans=len(ranges),
        histories=len(history.broken),
        stuck=stuck,
        examples=(*outcome.examples, *examples, *markers[:2], *ranges[:2], *history.broken[:2]),
    )


def _surplus(one: Driven, name: str) -> list[str]:
    """Return the transactional ids that the pipeline had under a name, and did not need."""
    bootstrap = one.context.bootstrap
    # Of a batch that was given up, the last plan has no sink partitions; they had transactional ids all the same.
    written = every_plan(bootstrap, one.ledger, name) if exists(bootstrap, one.ledger) else []
    return beyond(bootstrap, name, max((plan.sinks for plan in written), default=len(one.counts)))


def _judged_backfill(backfill: Backfill, one: Driven) -> Outcome:
    """Compare what a backfill wrote with the records of its range, of which each must come out again, once."""
    bootstrap, span = one.context.bootstrap, backfill.span
    lingering = open_after(bootstrap, backfill.name)
    output = read_into(Contents(one.world, one.source, rejected=False), bootstrap, backfill.sink)
    rejected = read_into(Contents(one.world, one.source, rejected=True), bootstrap, backfill.rejected)
    wrong, examples = found_wrong([output, rejected])
    outcome = judge(one.world, span.ends, output.seen, rejected.seen, starts=span.starts)
    every = tuple(f"backfill: {each}" for each in (*outcome.examples, *examples))
    return replace(outcome, records=0, wrong=wrong, lingering=len(lingering), examples=every)


def _ends(one: Driven) -> dict[int, int]:
    """Return the ends of the source partitions, as every tool sees them."""
    cluster = Cluster(Kafka(bootstrap_servers=one.context.bootstrap))
    return {number: end for (_, number), end in cluster.latest([(one.source, each) for each in one.counts]).items()}
