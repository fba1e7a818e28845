"""Which shuffles deal the same records to the same tasks when a batch is repeated.

A sink partition that was delivered is skipped on a replay, so every row has to reach the task that it reached before.
Round robin depends on order, and ranges depend on samples. A key is refused if any step below it may compute another
value on a replay: a random number, a user's non-deterministic function, the time, a table that may have changed, or a
choice among rows by their order of arrival.
Branches of a union are written by different tasks, so what decides a record's branch counts as a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tailrace.driver.branches import Choice, choices, members, records_of, same_columns, streams, unions
from tailrace.driver.catalyst import Node, Patterns, called, clocks, evaluated, items, parts, references, tree
from tailrace.driver.dealing import Keys, dealt, makes_up
from tailrace.driver.picks import ADVICE, ORDERED, by_order, over_rows, picked, ranks
from tailrace.errors import FunctionInvalid

# Python functions over groups of rows, and over the groups of two tables.
_GROUPED = ("FlatMapGroupsInPandas", "FlatMapGroupsInArrow")
_COGROUPED = ("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow")
# Operators whose rows are the same for as long as the plan is.
CONSTANT = frozenset({"LocalRelation", "LocalTableScan", "OneRowRelation", "Range"})
_BATCH = "LogicalRDD"
BY_COLUMNS = "use process.partitions, or repartition(n, column) by columns of the records"
_ONE_PASS = (
    "read the records once: in a left join with the table no record changes its task, and F.when(…) computes what "
    "differs, such as the column topic; or put coalesce(1) behind the union"
)


def unrepeatable(why: str, then: str = BY_COLUMNS) -> FunctionInvalid:
    """Return the error for rows that a replay would deal out differently."""
    return FunctionInvalid(
        f"the function's rows cannot be cut the same way again: {why}",
        kept="nothing was read or written",
        then=then,
    )


def described(node: Node) -> str:
    """Describe a table for a message."""
    if node.name == "LogicalRDD":
        return "rows created in Python, or an RDD"
    return re.sub(r"\s*\[[^\]]*\]|^Relation ", "", node.plan.simpleString(25)).strip() or node.name


def other_table(node: Node) -> str | None:
    """Return why the rows of a table may change; None for constants."""
    return None if node.name in CONSTANT else f"another table ({described(node)}), which may have changed on a replay"


class Doubts:
    """The columns of a plan whose values may differ on a replay, and what they depend on.

    `origin` returns why the rows of an operator without children may change; None if they do not. `clock` is whether
    a replay sees another current time: Spark's streams keep a batch's time.
    """

    def __init__(
        self,
        patterns: Patterns,
        origin: Callable[[Node], str | None],
        *,
        clock: bool,
        known: dict[int, str] | None = None,
        has_records: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        self._patterns = patterns
        self._origin = origin
        self._clock = clock
        self._has_records = has_records
        self.all: dict[int, str] = dict(known or {})
        self._done: dict[Node, dict[int, str]] = {}
        self._ranks: dict[int, frozenset[int]] = {}  # columns that a filter may pick rows by; what the rows share

    def of(self, node: Node) -> dict[int, str]:
        """Return the doubtful columns that an operator outputs."""
        if node not in self._done:
            self._done[node] = self._of(node) | self._picked(node)
            self.all |= self._done[node]
        return self._done[node]

    def below(self, node: Node) -> dict[int, str]:
        """Return the doubtful columns that an operator gets."""
        return {each: why for child in node.children for each, why in self.of(child).items()}

    def _picked(self, node: Node) -> dict[int, str]:
        """Return the columns that depend on which of several rows an operator keeps."""
        self._ranks |= ranks(node)
        found = picked(node) | by_order(node)
        for expression in node.expressions if self._ranks else ():
            used = [self._ranks[each] for each in references(expression) if each in self._ranks]
            if used and node.name == "Filter":
                shared = frozenset.intersection(*used)
                found |= {each: ORDERED for each in node.outputs if each not in shared}
            elif used and expression.getClass().getSimpleName() == "Alias":
                self._ranks[expression.exprId().id()] = frozenset.intersection(*used)
        return found

    def _of(self, node: Node) -> dict[int, str]:
        outputs = node.outputs
        if not node.children:
            why = self._origin(node)
            return dict.fromkeys(outputs, why) if why else {}
        if node.name == "CTERelationRef":
            below = self.of(node.children[0])
            pairs = zip(outputs, node.children[0].outputs, strict=True)
            return {mine: below[theirs] for mine, theirs in pairs if theirs in below}
        below = self.below(node)
        if node.name == "Union":
            return self._of_union(node, below)
        passed = {each for child in node.children for each in child.outputs}
        found = {each: below[each] for each in outputs if each in below}
        made = [each for each in outputs if each not in passed]
        if not made:
            return found
        named: dict[int, str | None] = {}
        general: str | None = None  # an expression without a name may be the source of any column
        calls = evaluated(node)
        named |= {column: self.why(call, below) for column, call in calls.items()}
        for expression in () if calls else node.expressions:
            why = self.why(expression, below)
            if expression.getClass().getSimpleName() == "Alias":
                named[expression.exprId().id()] = why
            else:
                general = general or why
        for each in made:
            why = self.all.get(each) or named.get(each, general)
            if why:
                found[each] = why
        return self._over_rows(node) | found

    def _over_rows(self, node: Node) -> dict[int, str]:
        """Return the columns that are computed over several rows, if a replay may find others there."""
        columns = over_rows(node)
        why = next(filter(None, map(self.decides, members(node, self._has_records) if columns else ())), None)
        return dict.fromkeys(columns, why) if why else {}

    def _of_union(self, node: Node, below: dict[int, str]) -> dict[int, str]:
        """A column may differ if a branch's does, or if it depends on the branch, and a record may be in another."""
        found: dict[int, str] = {}
        moves = next(filter(None, map(self.decides, choices(node, self._has_records))), None)
        for mine, theirs in zip(node.outputs, zip(*(each.outputs for each in node.children), strict=True), strict=True):
            why = next((below[each] for each in theirs if each in below), None)
            if why is None and moves is not None and not same_columns(node, theirs):
                why = moves
            if why is not None:
                found[mine] = why
        return found

    def decides(self, choice: Choice) -> str | None:
        """Return why other records may come out of an operator on a replay; None if they stay the same."""
        if choice.why:
            return choice.why
        for table in choice.tables:
            self.of(table)
            for each in table:
                why = None if each.children else self._origin(each)
                if why:
                    return why
        below = self.below(choice.node)
        return next(filter(None, (self.why(each, below) for each in choice.expressions)), None)

    def why(self, expression: Any, below: dict[int, str] | None = None) -> str | None:
        """Return what makes a value differ on a replay; None if it stays the same."""
        below = self.all if below is None else below
        for each in references(expression):
            if each in below:
                return below[each]
        if not expression.deterministic():
            chance = next(parts(expression, lambda each: not each.deterministic()))
            return f"{called(chance)}, which may give a different value on a replay"
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
                raise unrepeatable(f"the branch of a union that a record is in depends on {why}", _ONE_PASS)


def check_stream(rows: Any, patterns: Patterns, *, clock: bool, joins: bool) -> Node:
    """Return a stream's plan, as Spark has analysed it, as a tree; refuse shuffles that cannot be repeated.

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
    # A table that joins and groupings use may change: to enrich the records and count them is what streams are for.
    # The batch's time is in Spark's checkpoint.
    _check_dealt(root, Doubts(patterns, lambda node: None, clock=False, has_records=streams), streams, joins=joins)
    _check_branches(root, doubts, streams)
    return root


def check_batch(rows: Any, patterns: Patterns, batch: int, *, joins: bool) -> None:
    """Refuse a `foreachBatch` function's frame if its shuffles cannot be repeated.

    Spark passes the batch as an RDD, whose id is `batch`. Another RDD may hold anything, even chance that was computed.
    `joins` is as for a stream.
    """
    root = tree(rows)
    has_records = records_of(batch)

    def origin(node: Node) -> str | None:
        return None if node.name == _BATCH and node.plan.rdd().id() == batch else other_table(node)

    doubts = Doubts(patterns, origin, clock=True, has_records=has_records)
    for node in root:
        if _of_batch(node):
            check(node, doubts)
    known = Doubts(patterns, lambda node: None, clock=True, has_records=has_records)
    _check_dealt(root, known, has_records, joins=joins)
    _check_branches(root, doubts, has_records)


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
