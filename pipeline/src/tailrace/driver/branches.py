"""What decides which branch of a union a record is in.

Each branch of a union is written by tasks of its own, so a record that a replay finds in another branch may be lost:
the branch that it enters is delivered, and the one that it leaves no longer has it. Branches of different topics have
no records in common, so they exchange none. An operator above the union that deals the rows out by good keys makes up
for this, and so does one that puts all rows into a single task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tailrace.driver.catalyst import Node, items
from tailrace.driver.dealing import join_type, makes_up, merges

HasRecords = Callable[[Node], bool]
Topics = frozenset[str] | None

_KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable"

# Join types that keep every record of a side (left, right).
_KEEPING = (
    frozenset({"LeftOuter", "LeftSingle", "ExistenceJoin", "FullOuter"}),
    frozenset({"RightOuter", "FullOuter"}),
)
# Operators that may drop a row, depending on their expressions.
_CHOOSING = frozenset(
    {
        "ArrowEvalPythonUDTF", "BatchEvalPythonUDTF", "FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas",
        "FlatMapGroupsInArrow", "FlatMapGroupsInPandas", "Filter", "Generate", "LateralJoin", "MapInArrow",
        "MapInPandas", "MapPartitions", "TypedFilter",
    }
)  # fmt: skip
_BY_ORDER = {
    "GlobalLimit": "which rows a limit keeps",
    "Offset": "which rows an offset skips",
    "Sample": "a sample, which may hold other rows on a replay",
    "Tail": "which rows come last",
}
_COMPARING = frozenset({"Except", "Except All", "Intersect", "Intersect All"})


@dataclass(frozen=True)
class Choice:
    """An operator below a union, and what it decides by: its expressions, other tables, or the order of rows."""

    node: Node
    expressions: tuple[Any, ...] = ()
    tables: tuple[Node, ...] = ()
    why: str | None = None  # why it can never be repeated


def streams(node: Node) -> bool:
    """Return whether an operator of a stream's plan has records of the stream."""
    return bool(node.plan.isStreaming())


def made_from(batch: int) -> Callable[[Any], bool]:
    """Return whether an RDD is the one with this id, or was made from it; a negative id is of none.

    A checkpoint does not show what it was made from, which may be the batch if it is younger.
    """
    known: dict[int, bool] = {batch: True}

    def comes_from(rdd: Any) -> bool:
        number = rdd.id()
        if number not in known:
            made = (each.rdd() for each in items(rdd.dependencies()))
            known[number] = 0 <= batch < number and (rdd.isCheckpointed() or any(map(comes_from, made)))
        return known[number]

    return comes_from


def records_of(batch: int) -> HasRecords:
    """Return whether a plan has records of a batch: of the RDD with this id, or of one that was made from it."""
    comes_from = made_from(batch)
    return lambda node: any(each.name == "LogicalRDD" and comes_from(each.plan.rdd()) for each in node)


def unions(node: Node, has_records: HasRecords) -> Iterator[Node]:
    """Yield the unions that decide which task writes a row, of branches that may have records in common."""
    if makes_up(node, has_records) or merges(node):
        return
    if _branches(node, has_records):
        yield node
    for each in node.children:
        yield from unions(each, has_records)


def choices(union: Node, has_records: HasRecords) -> Iterator[Choice]:
    """Yield what decides the branch of a record that may be in another one."""
    found = _branches(union, has_records)
    for place, each in enumerate(found):
        others = [_topics(other, has_records) for other in (*found[:place], *found[place + 1 :])]
        yield from _choices(each, has_records, others)


def members(node: Node, has_records: HasRecords) -> Iterator[Choice]:
    """Yield what decides which records an operator gets."""
    for each in node.children:
        if has_records(each):
            yield from _choices(each, has_records, [None])


def same_columns(union: Node, columns: tuple[int, ...]) -> bool:
    """Return whether columns of the branches, one of each, are the same column of the same records."""
    return len({_origin(branch, each) for branch, each in zip(union.children, columns, strict=True)}) == 1


def _origin(node: Node, column: int) -> tuple[object, ...]:
    """Return the leaf that a column comes from, and its place there; without a leaf, where it is computed."""
    for each in node.expressions if node.name == "Project" else ():
        if each.getClass().getSimpleName() == "Alias" and each.exprId().id() == column:
            if each.child().getClass().getSimpleName() != "AttributeReference":
                return (column,)
            column = each.child().exprId().id()
    if node.name == "LogicalRDD":
        return (node.plan.rdd().id(), node.outputs.index(column))
    if not node.children and streams(node):  # records of one stream are in none of another
        return (node.name, node.outputs.index(column))
    for child in node.children if node.name != "Union" else ():
        if column in child.outputs:
            return _origin(child, column)
    return (column,)


def _branches(node: Node, has_records: HasRecords) -> list[Node]:
    """Return the branches of a union that may have records in common with another one."""
    if node.name != "Union":
        return []
    found = [each for each in node.children if has_records(each) and not _empty(each)]
    reads = [_topics(each, has_records) for each in found]
    return [
        each
        for place, each in enumerate(found)
        if any(_meet(reads[place], other) for other in reads[:place] + reads[place + 1 :])
    ]


def _meet(mine: Topics, theirs: Topics) -> bool:
    """Return whether two branches may have records in common."""
    return mine is None or theirs is None or bool(mine & theirs)


def _topics(node: Node, has_records: HasRecords) -> Topics:
    """Return the topics whose records a branch has; None if it may have others."""
    reads = [_read_by(each) for each in node if not each.children and has_records(each)]
    return frozenset().union(*map(frozenset, reads)) if reads and all(reads) else None


def _read_by(leaf: Node) -> list[str]:
    """Return the topics that a stream's reader names; nothing for a pattern, another source, or a batch of a stream."""
    if leaf.name == "StreamingRelationV2":  # as analysed
        table, options = leaf.plan.table(), leaf.plan.extraOptions()
    elif leaf.name == "StreamingDataSourceV2ScanRelation":  # as executed
        table, options = leaf.plan.relation().table(), leaf.plan.relation().options()
    else:
        return []
    if table.getClass().getName() != _KAFKA:
        return []
    if options.get("assign"):
        return list(json.loads(options.get("assign")))
    return [each.strip() for each in (options.get("subscribe") or "").split(",") if each.strip()]


def _choices(node: Node, has_records: HasRecords, others: list[Topics]) -> Iterator[Choice]:
    """Yield what decides which records come out of a plan, of those that the `others` may have too."""
    if not node.children:
        yield Choice(node, tables=(node,))
    elif node.name in _BY_ORDER:
        yield Choice(node, why=_BY_ORDER[node.name])
    elif node.name in {"AsOfJoin", "Join"}:
        yield from _of_join(node, has_records)
    elif node.name in _COMPARING:
        yield Choice(node, tables=tuple(each for each in node.children if not has_records(each)))
    elif node.name == "Aggregate":
        yield Choice(node, tuple(items(node.plan.groupingExpressions())))
    elif node.name in _CHOOSING and not (node.name == "Generate" and node.plan.outer()):
        yield Choice(node, tuple(node.expressions), node.subqueries)
    for each in node.children:
        if has_records(each) and (node.name != "Union" or any(_meet(_topics(each, has_records), it) for it in others)):
            yield from _choices(each, has_records, others)


def _of_join(node: Node, has_records: HasRecords) -> Iterator[Choice]:
    sides = [has_records(each) for each in node.children]
    if any(mine and join_type(node) not in kept for mine, kept in zip(sides, _KEEPING, strict=True)):
        tables = [each for each, mine in zip(node.children, sides, strict=True) if not mine]
        yield Choice(node, tuple(node.expressions), tuple(tables))


def _empty(node: Node) -> bool:
    """Return whether a branch never has a row, as behind `where("false")` or `limit(0)`."""
    if node.name == "Filter" and node.plan.condition().sql() == "false":
        return True
    if node.name == "GlobalLimit" and node.plan.limitExpr().sql() == "0":
        return True
    return node.name != "Aggregate" and len(node.children) == 1 and _empty(node.children[0])
