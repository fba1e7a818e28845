"""What `exactly_once` refuses of a batch that comes again: another batch, another sink, or another cut."""

from __future__ import annotations

from tailrace import errors
from tailrace.driver.catalyst import Node, Patterns, clocks
from tailrace.progress.marker import CONTINUE
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import Slice, StreamPlan, assign
from tailrace.spark_stream import spark_source
from tailrace.spark_stream.analysis import holds_state


def timeless(query: Node, patterns: Patterns) -> bool:
    """Return whether a query makes the same of the same records at any time: without state, and without the clock."""
    read_clock = any(clocks(each, patterns) for node in query for each in node.expressions)
    return not read_clock and not any(map(holds_state, query))


def check_same(known: StreamPlan, now: StreamPlan, *, timeless: bool) -> None:
    """Refuse a batch that has the number of the last one, and is neither its replay nor reads the same from Kafka.

    A query that is not `timeless` may make something else of the same records in a batch of another time. Plans of
    earlier versions name no query, and behind a shuffle no ranges: they are finished.
    """
    if known.query in {known.pipeline, now.query} or (timeless and now.ranges and known.ranges == now.ranges):
        return
    was, would = (", ".join(map(str, each.ranges[:3])) or f"what {each.query} planned" for each in (known, now))
    when = "" if known.ranges != now.ranges else " at another time, on which the query depends"
    raise errors.CheckpointMismatch(
        f"batch {known.batch} of {known.pipeline!r} was planned to read {was}, and would now read {would}{when}: the "
        "checkpoint folder is older than the ledger, or another one",
        kept="nothing was written",
        then="use the checkpoint folder that the query used before; if it is lost, check the output for what the batch "
        "has delivered, then continue with a new folder, another id and startingOffsets",
    )


def check_sink(known: StreamPlan, now: StreamPlan) -> None:
    """Refuse to deliver the rest of a batch to another topic. Plans of earlier versions name none."""
    if known.sink is None or known.sink == now.sink:
        return
    was, would = (f"the topic {each.sink!r}" if each.sink else "the topics of the rows" for each in (known, now))
    raise errors.PlanOfAnother(
        f"batch {known.batch} of {known.pipeline!r} was planned for {was}, and this sink writes to {would}",
        kept="nothing was written",
        then="if another sink has this name, give one of them another id; if you changed the topic, finish the batch "
        "with the query as it was, with the trigger availableNow, then change it",
    )


def assigned(known: StreamPlan, slices: tuple[Slice, ...]) -> tuple[SinkPartition, ...]:
    """Return the sink partition of each task that finishes a batch; refuse tasks that are cut in another way."""
    try:
        return assign(known, slices)
    except errors.CutChanged as error:
        then = (
            "if the query, its settings or those of the session have changed, finish the batch with the query as it "
            f"was, with the trigger availableNow; if records are gone, {CONTINUE}"
        )
        if any(each.startswith("file:") for each in known.slices):
            then = (
                "Spark divides files by the number of cores that it has: start the query with as many as in its last "
                "run, or set spark.sql.files.minPartitionNum to that number; if the query has changed, finish the "
                "batch with the query as it was"
            )
        raise errors.CutChanged(error.what, kept=error.kept, then=then) from None


def same_single(known: StreamPlan, now: StreamPlan) -> bool:
    """Return whether one task has all rows of a batch, then and now, which the two name in different ways.

    Earlier versions named a limit's by what it reads, and the parts of tables and files, whose number depends on the
    number of cores.
    """
    if len(known.slices) != 1 or len(now.slices) != 1:
        return False
    was, read = (sorted(spark_source.ranges_of(each.slices[0])) for each in (known, now))
    return was == read or (now.slices == ("#0",) and was == sorted(now.ranges))


def shuffles_changed(plan: StreamPlan, what: str) -> errors.CutChanged:
    """Return the refusal of a batch whose rest would be cut by something else."""
    return errors.CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} is delivered in part, and was begun with {what}: the keys of the "
        "shuffles, the conditions of a union's branches, and the Python functions that compute them, decide what a "
        "sink partition gets",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then="finish the batch with the query as it was, with the trigger availableNow, then change it; if it is as it "
        "was, and goes by the order of a set, start with PYTHONHASHSEED=0, then 1, 2 and so on until that is done",
    )


def branches_moved(plan: StreamPlan) -> errors.CutChanged:
    """Return the refusal of a batch whose branches come in another order."""
    return errors.CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} is delivered in part, and was begun with the branches of a union in "
        "another order: the tasks of a branch that is delivered would write another one",
        kept="nothing more of the batch was delivered; what was, is not delivered again",
        then="build the branches in the order of before; if it was that of a set of names, start with "
        "PYTHONHASHSEED=0, then 1, 2 and so on until the batch is finished, then use a list or sorted(…)",
    )


def planned_otherwise(plan: StreamPlan) -> errors.CutChanged:
    """Return the refusal of a batch that Spark has planned in two ways."""
    return errors.CutChanged(
        f"batch {plan.batch} of {plan.pipeline!r} was cut in one way, and in another when Spark planned its write: the "
        "size of a table that it is joined with has become known, or has changed, between the two",
        kept="nothing of this attempt was sent",
        then="start the query again; if this repeats, put broadcast(…) around the table, or give it .hint('merge')",
    )
