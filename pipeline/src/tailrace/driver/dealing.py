"""How joins and groupings deal rows out to tasks: by which keys, unless a table is broadcast.

A grouping that deals its rows out by good keys makes up for all below it: where a row is then depends on these keys
alone. So a salted aggregation below one by the records' columns is repeatable. A join makes up for nothing: Spark
chooses whether it deals out any rows, and by which of the keys. The size of a table does not tell, as the plan that is
analysed knows neither what is cached nor which columns are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

from tailrace.driver.catalyst import Node, items, references

Keys = list[tuple[str, Any]]  # the operation that deals the rows out, and its key expression
# Join types by the side that the records may be on (left, right) if each task is to have all of the other table.
JOINS = (
    frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "ExistenceJoin", "LeftSingle"}),
    frozenset({"Inner", "Cross", "RightOuter"}),
)
# The sides whose columns are null where a join of this type finds no row.
OPTIONAL = {"FullOuter": (0, 1), "LeftOuter": (1,), "LeftSingle": (1,), "RightOuter": (0,)}
_STATE = frozenset({"FlatMapGroupsInPandasWithState", "FlatMapGroupsWithState", "TransformWithState"})
_BY_ALL_COLUMNS = frozenset({"Distinct", "Except", "Except All", "Intersect", "Intersect All"})
_PASSING = frozenset({"LocalLimit", "Project", "SubqueryAlias", "View"})  # every row stays in its task
# Their keys are checked wherever they are.
_CHECKED = frozenset(
    {
        "FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas", "FlatMapGroupsInArrow", "FlatMapGroupsInPandas",
        "RepartitionByExpression",
    }
)  # fmt: skip


class _Way(Enum):
    """How Spark brings the rows of a join together."""

    BROADCAST = auto()
    SHUFFLE = auto()
    CHOSEN = auto()  # by the size of a table, each time that the join is planned


def makes_up(node: Node, has_records: Callable[[Node], bool]) -> bool:
    """Return whether the rows behind an operator are where its keys say, wherever they were before."""
    return node.name != "Join" and dealt(node, has_records, joins=True) is not None


def dealt(node: Node, has_records: Callable[[Node], bool], *, joins: bool) -> Keys | None:
    """Return the keys by which an operator deals out the records' rows; None if they stay where they are.

    `joins` is whether a join deals them out if Spark may choose.
    """
    match node.name:
        case "Aggregate":
            return [("the grouping", each) for each in items(node.plan.groupingExpressions())]
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return [("the deduplication", each) for each in items(node.plan.keys())]
        case "Window":
            return [("the window", each) for each in items(node.plan.partitionSpec())]
        case "TransformWithStateInPySpark":
            return [("the grouping", each) for each in items(node.plan.leftAttributes())]
        case "Join":
            return _joined(node, has_records, joins=joins)
        case name if name in _STATE:
            return [("the grouping", each) for each in items(node.plan.groupingAttributes())]
        case name if name in _BY_ALL_COLUMNS:
            sides = [each for each in node.children if has_records(each)]
            return [("the comparison", each) for side in sides for each in items(side.plan.output())]
        case name if name in _CHECKED:
            return []
    return None


def merges(node: Node) -> bool:
    """Return whether an operator puts all rows into a single task without dealing them out anew."""
    return node.name == "Repartition" and not node.plan.shuffle() and node.plan.numPartitions() == 1


def sorts_into_one(node: Node) -> Iterator[Node]:
    """Yield the sort right below an operator that puts all rows into one task: how it deals them out is no matter."""
    if merges(node) or node.name == "GlobalLimit":
        below = node.children[0]
        while below.name in _PASSING:
            below = below.children[0]
        if below.name == "Sort":
            yield below


def equated(condition: Any) -> Iterator[Any]:
    """Yield both sides of each equality that a join's condition requires."""
    kind = condition.getClass().getSimpleName()
    if kind == "And":
        for each in items(condition.children()):
            yield from equated(each)
    elif kind in {"EqualTo", "EqualNullSafe"}:
        yield from items(condition.children())


def join_type(node: Node) -> str:
    """Return the name of a join's type."""
    return str(node.plan.joinType().toString()).partition("(")[0]


def _joined(node: Node, has_records: Callable[[Node], bool], *, joins: bool) -> Keys | None:
    condition, way = node.plan.condition(), _way(node, has_records)
    if condition.isEmpty() or way is _Way.BROADCAST or (way is _Way.CHOSEN and not joins):
        return None
    keys = [(each, set(references(each))) for each in equated(condition.get())]
    sides = [set(each.outputs) for each in node.children if has_records(each)]
    return [("the join", key) for side in sides for key, used in keys if used and used <= side] or None


def _way(node: Node, has_records: Callable[[Node], bool]) -> _Way:
    tables = [
        each
        for each, kinds in zip(node.children, reversed(JOINS), strict=True)
        if join_type(node) in kinds and not each.plan.isStreaming()
    ]
    if "BROADCAST$" in map(_hint, tables):
        return _Way.BROADCAST
    return _Way.SHUFFLE if any(map(_hint, node.children)) or all(map(has_records, node.children)) else _Way.CHOSEN


def _hint(side: Node) -> str:
    """Return the join strategy that a hint asks for, as Spark finds it; empty if none does."""
    while side.name != "ResolvedHint" or side.plan.hints().strategy().isEmpty():
        if len(side.children) != 1:
            return ""
        side = side.children[0]
    return str(side.plan.hints().strategy().get().getClass().getSimpleName())
