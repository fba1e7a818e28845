"""Which shuffles deal the same records to the same tasks when a batch is repeated.

A sink partition that was delivered is skipped on a replay, so every row has to reach the task that it reached before.
Round robin depends on order, and ranges depend on samples. A key is refused if any step below it may compute another
value on a replay (`column_doubts`). What a query has computed counts in its batches, which Spark passes as an RDD.
Branches of a union are written by different tasks, so what decides a record's branch counts as a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tailrace.driver.branches import choices, made_from, records_of, streams, unions
from tailrace.driver.catalyst import Node, Patterns, items, tree
from tailrace.driver.column_doubts import ADVICE, COMPUTED, Doubts, other_table
from tailrace.driver.dealing import Keys, dealt, makes_up, sorts_into_one
from tailrace.errors import FunctionInvalid, InvariantBroken

# Python functions over groups of rows, and over the groups of two tables.
_GROUPED = ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")
_COGROUPED = ("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")
_BATCH = "LogicalRDD"
BY_COLUMNS = "use process.partitions, or repartition(n, column) by columns of the records"
ONE_PASS = (
    "read the records once: in a left join with the table no record changes its task, and F.when(…) computes what "
    "differs, such as the column topic; or put coalesce(1) behind the union"
)


@contextmanager
def plans_read() -> Iterator[None]:
    """Say what to do about a plan with more levels than Python can follow; each `withColumn` is a level of its own."""
    try:
        yield
    except RecursionError:
        raise FunctionInvalid(
            "the function's plan has too many steps to be read",
            kept="nothing was read or written",
            then="combine calls of withColumn in one of withColumns, or in a select",
        ) from None


def unrepeatable(why: str, then: str = BY_COLUMNS) -> FunctionInvalid:
    """Return the error for rows that a replay would deal out differently."""
    return FunctionInvalid(
        f"the function's rows cannot be cut the same way again: {why}",
        kept="nothing was read or written",
        then=then,
    )


def check(node: Node, doubts: Doubts) -> None:
    """Refuse an operator that deals rows out in a way that cannot be repeated."""
    for what, key in _keys(node):
        if key.getClass().getSimpleName() == "SortOrder":
            raise unrepeatable(f"{what} by ranges depends on a sample of the rows")
        why = doubts.why(key, doubts.below(node))
        if why:
            raise unrepeatable(f"{what} by {key.sql()} depends on {why}", ADVICE.get(why, BY_COLUMNS))


def _check_dealt(node: Node, doubts: Doubts, has_records: Callable[[Node], bool], *, joins: bool) -> None:
    """Refuse a join or a grouping by chance, unless a grouping above it deals its rows out by good keys."""
    keys = dealt(node, has_records, joins=joins)
    below = doubts.below(node)
    for what, key in keys or ():
        why = doubts.why(key, below)
        if why:
            raise unrepeatable(
                f"{what} by {key.sql()} depends on {why}",
                ADVICE.get(
                    why,
                    "use keys that are computed from the records alone; or put broadcast(…) around the table in a join",
                ),
            )
    if not makes_up(node, has_records):
        for child in node.children:
            if has_records(child):
                _check_dealt(child, doubts, has_records, joins=joins)


def _check_branches(root: Node, doubts: Doubts, has_records: Callable[[Node], bool]) -> None:
    """Refuse a union of branches if a replay may find a record in another one."""
    for union in unions(root, has_records):
        for choice in choices(union, has_records):
            why = doubts.decides(choice)
            if why:
                raise unrepeatable(f"the branch of a union that a record is in depends on {why}", ONE_PASS)


@dataclass(frozen=True)
class Judged:
    """A plan that was not refused, and which of its columns may differ on a replay.

    A table that joins and groupings use may change: to enrich the records and count them is what streams are for. So
    `known` leaves out what only tables may change.
    """

    root: Node
    doubts: Doubts
    known: Doubts
    given: Sequence[str | None] = ()  # of `known`, for the columns of the batch that the plan begins with

    def carried(self, doubts: Doubts) -> Sequence[str | None]:
        """Return why each of the columns that come out may differ."""
        rows = self.root
        while rows.children and not rows.outputs:  # what writes them
            rows = rows.children[0]
        found = doubts.of(rows)
        return [found.get(each) for each in rows.outputs]


def of_columns(leaf: Node, reasons: Sequence[str | None]) -> dict[int, str]:
    """Return the reasons by the columns of the operator that has the batch."""
    if len(leaf.outputs) != len(reasons):
        raise InvariantBroken(f"a batch has {len(leaf.outputs)} columns, and the query's rows {len(reasons)}")
    return {column: why for column, why in zip(leaf.outputs, reasons, strict=True) if why}


def check_stream(rows: Any, patterns: Patterns, *, clock: bool, joins: bool) -> Judged:
    """Judge a stream's plan, as Spark has analysed it; refuse shuffles that cannot be repeated.

    `joins` is whether Spark shuffles for a join with a table although no hint asks for it.
    """
    root = tree(rows)
    doubts = Doubts(
        patterns,
        lambda node: None if node.plan.isStreaming() else other_table(node),
        clock=clock,
        has_records=streams,
    )
    for node in root:
        if node.plan.isStreaming():
            check(node, doubts)
    # The batch's time is in Spark's checkpoint.
    known = Doubts(patterns, lambda node: None, clock=False, tables=False, has_records=streams, branches=doubts)
    _check_dealt(root, known, streams, joins=joins)
    _check_branches(root, doubts, streams)
    return Judged(root, doubts, known)


def check_batch(rows: Any, patterns: Patterns, batch: int, query: Judged, *, joins: bool) -> Judged:
    """Judge a `foreachBatch` function's frame; refuse it if its shuffles cannot be repeated.

    Spark passes the batch as an RDD, whose id is `batch`, with what the `query` makes. Another RDD may hold anything,
    even chance that was computed. `joins` is as for a stream.
    """
    root = tree(rows)
    has_records = records_of(batch)

    def of_query(node: Node) -> bool:
        return bool(node.name == _BATCH and node.plan.rdd().id() == batch)

    def given(reasons: Sequence[str | None]) -> dict[int, str]:
        return {each: why for node in root if of_query(node) for each, why in of_columns(node, reasons).items()}

    made, kept = query.carried(query.doubts), query.carried(query.known)
    doubts = Doubts(
        patterns,
        lambda node: None if of_query(node) else other_table(node),
        clock=True,
        given=given(made),
        has_records=has_records,
    )
    bounded = {sort for node in root for sort in sorts_into_one(node)}
    for node in root:
        if _of_batch(node) and node not in bounded:
            check(node, doubts)
    ours = made_from(batch)

    def computed(node: Node) -> str | None:
        other = node.name == _BATCH and not of_query(node) and ours(node.plan.rdd())
        return COMPUTED if other else None

    known = Doubts(
        patterns, computed, clock=True, tables=False, given=given(kept), has_records=has_records, branches=doubts
    )
    _check_dealt(root, known, has_records, joins=joins)
    _check_branches(root, doubts, has_records)
    return Judged(root, doubts, known, kept)


def _of_batch(node: Node) -> bool:
    return any(each.name == _BATCH for each in node)


def _keys(node: Node) -> Keys:
    match node.name:
        case "RebalancePartitions":
            raise unrepeatable("a rebalance deals records out by their order of arrival")
        case "Repartition" if node.plan.shuffle():
            raise unrepeatable("a repartition without columns deals records out by their order of arrival")
        case "Sort" if getattr(node.plan, "global")():
            raise unrepeatable("sort() orders a batch by a sample of its rows")
        case "RepartitionByExpression":
            keys = items(node.plan.partitionExpressions())
            if not keys:
                raise unrepeatable("a repartition without columns deals records out by their order of arrival")
            return [("the repartition", each) for each in keys]
        case name if name in _GROUPED:
            return [("the grouping", each) for each in items(node.plan.groupingAttributes())]
        case name if name in _COGROUPED:
            left, right = (items(each.plan.output()) for each in node.children)
            grouped = [*left[: node.plan.leftGroupingLen()], *right[: node.plan.rightGroupingLen()]]
            return [("the grouping", each) for each in grouped]
    return []
