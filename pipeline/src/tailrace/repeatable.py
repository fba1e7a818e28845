"""Which shuffles deal the same records to the same tasks when a batch is repeated.

A sink partition that was delivered is skipped on a replay, so every row has to reach the task that it reached before.
Round robin and ranges depend on order and on samples. A key is refused if any step below it may compute something else
on a replay: a random number, a user's non-deterministic function, the time, or a table that may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.catalyst import Node, Patterns, called, clocks, items, parts, references
from tailrace.errors import FunctionInvalid

# Python functions over groups of rows, and over the groups of two tables.
_GROUPED = ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")
_COGROUPED = ("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")
Keys = list[tuple[str, Any]]  # what deals the rows out, and the expression that it does it by


def unrepeatable(why: str) -> FunctionInvalid:
    """The error for rows that a replay would deal out otherwise."""
    return FunctionInvalid(
        f"the function's rows cannot be cut the same way again: {why}",
        kept="nothing was read or written",
        then="use process.partitions, or repartition(n, column) by columns of the records",
    )


class Doubts:
    """The columns of a plan that may hold something else when it is computed again, and on what they depend.

    `origin` says why the rows of an operator without children may change; None if they do not. `clock` says whether
    the current time is another one when a batch is repeated: Spark's streams keep a batch's time.
    """

    def __init__(
        self,
        patterns: Patterns,
        origin: Callable[[Node], str | None],
        *,
        clock: bool,
        known: dict[int, str] | None = None,
    ) -> None:
        self._patterns = patterns
        self._origin = origin
        self._clock = clock
        self.all: dict[int, str] = dict(known or {})
        self._done: dict[Node, dict[int, str]] = {}

    def of(self, node: Node) -> dict[int, str]:
        """The doubtful columns that come out of an operator."""
        if node not in self._done:
            self._done[node] = self._of(node)
            self.all |= self._done[node]
        return self._done[node]

    def _of(self, node: Node) -> dict[int, str]:
        outputs = node.outputs
        if not node.children:
            why = self._origin(node)
            return dict.fromkeys(outputs, why) if why else {}
        if node.name == "CTERelationRef":
            below = self.of(node.children[0])
            pairs = zip(outputs, node.children[0].outputs, strict=True)
            return {mine: below[theirs] for mine, theirs in pairs if theirs in below}
        below = {each: why for child in node.children for each, why in self.of(child).items()}
        passed = {each for child in node.children for each in child.outputs}
        found = {each: below[each] for each in outputs if each in below}
        made = [each for each in outputs if each not in passed]
        if not made:
            return found
        named: dict[int, str | None] = {}
        general: str | None = None  # an expression that is not the source of one column may be that of any
        for expression in node.expressions:
            why = self.why(expression, below)
            if expression.getClass().getSimpleName() == "Alias":
                named[expression.exprId().id()] = why
            else:
                general = general or why
        for each in made:
            why = self.all.get(each) or named.get(each, general)
            if why:
                found[each] = why
        return found

    def why(self, expression: Any, below: dict[int, str] | None = None) -> str | None:
        """What a value depends on that may be another on a replay; None if it is the same."""
        below = self.all if below is None else below
        for each in references(expression):
            if each in below:
                return below[each]
        if not expression.deterministic():
            chance = next(parts(expression, lambda each: not each.deterministic()))
            return f"{called(chance)}, which may give another value on a replay"
        if self._clock:
            for each in clocks(expression, self._patterns):
                return f"{called(each)}, which is later on a replay"
            if expression.containsPattern(self._patterns.subquery):
                return "a subquery, whose table may have changed before a replay"
        return None


def check(node: Node, doubts: Doubts) -> None:
    """Refuse an operator that deals rows out in a way that cannot be repeated."""
    for what, key in _keys(node):
        if key.getClass().getSimpleName() == "SortOrder":
            raise unrepeatable(f"{what} by ranges follows a sample of the rows")
        for child in node.children:
            doubts.of(child)
        why = doubts.why(key)
        if why:
            raise unrepeatable(f"{what} by {key.sql()} depends on {why}")


def _keys(node: Node) -> Keys:
    match node.name:
        case "RebalancePartitions":
            raise unrepeatable("a rebalance deals records out by their order of arrival")
        case "Repartition" if node.plan.shuffle():
            raise unrepeatable("a repartition without columns deals records out by their order of arrival")
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
