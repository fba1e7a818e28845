"""Which columns of a plan may have other values when a batch is repeated, and what they depend on.

A random number, a user's non-deterministic function, the time, a table that may have changed, or a choice among rows by
their order of arrival: whatever is computed from one of them is as doubtful. The same rules read what Spark has
analysed and what it executes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tailrace.driver import picks
from tailrace.driver.branches import Choice, choices, members, same_columns
from tailrace.driver.catalyst import (
    Node,
    Patterns,
    called,
    clocks,
    evaluated,
    held,
    held_columns,
    parts,
    references,
    tree,
)
from tailrace.driver.dealing import OPTIONAL, join_type
from tailrace.driver.picks import EXECUTED, LIMITED, LIMITS, ORDERED, by_order, numbers, over_rows, picked, ranks

COMPUTED = "rows of an RDD or a checkpoint, which may hold values that a replay computes otherwise"
ADVICE = picks.ADVICE | {COMPUTED: "use cache(), not localCheckpoint() or a DataFrame of the frame's RDD"}
# Operators whose rows are the same for as long as the plan is.
CONSTANT = frozenset({"LocalRelation", "LocalTableScan", "OneRowRelation", "Range"})


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
    a replay sees another current time: Spark's streams keep a batch's time. `tables` is whether its subqueries may see
    other tables. Columns that an operator makes may be `known` as doubtful, and those of an operator without children
    be `given` as such. `branches` are the doubts about what decides the branch of a union, unless they are the same.
    """

    def __init__(
        self,
        patterns: Patterns,
        origin: Callable[[Node], str | None],
        *,
        clock: bool,
        tables: bool = True,
        known: dict[int, str] | None = None,
        given: dict[int, str] | None = None,
        has_records: Callable[[Node], bool] = lambda node: False,
        branches: Doubts | None = None,
    ) -> None:
        self._patterns = patterns
        self._origin = origin
        self._clock = clock
        self._tables = tables
        self._has_records = has_records
        self._branches = branches or self
        self._given = given or {}
        self.all: dict[int, str] = dict(known or {})
        self._done: dict[Node, dict[int, str]] = {}
        self._ranks: dict[int, frozenset[int]] = {}  # columns that a filter may pick rows by; what the rows share
        self._numbers: set[int] = set()  # those that number the rows of a group

    def of(self, node: Node) -> dict[int, str]:
        """Return the doubtful columns that an operator outputs."""
        if node not in self._done:
            self._done[node] = self._of(node) | self._picked(node)
            passed = {each for child in node.children for each in child.outputs}
            self.all |= {each: why for each, why in self._done[node].items() if each not in passed}
        return self._done[node]

    def below(self, node: Node) -> dict[int, str]:
        """Return the doubtful columns that an operator gets."""
        return {each: why for child in node.children for each, why in self.of(child).items()}

    def _picked(self, node: Node) -> dict[int, str]:
        """Return the columns that depend on which of several rows an operator keeps."""
        self._ranks |= ranks(node)
        self._numbers |= numbers(node)
        found = picked(node) | by_order(node)
        for expression in node.expressions if self._ranks else ():
            used = [self._ranks[each] for each in references(expression) if each in self._ranks]
            if used and node.name == "Filter":
                shared = frozenset.intersection(*used)
                found |= {each: ORDERED for each in node.outputs if each not in shared}
            elif used and expression.getClass().getSimpleName() == "Alias":
                self._ranks[expression.exprId().id()] = frozenset.intersection(*used)
                if self._numbers.issuperset(references(expression)):
                    self._numbers.add(expression.exprId().id())
        return found

    def _of(self, node: Node) -> dict[int, str]:
        outputs = node.outputs
        if not node.children:
            why = self._origin(node)
            return dict.fromkeys(outputs, why) if why else self._held(node)
        if node.name == "CTERelationRef":
            below = self.of(node.children[0])
            pairs = zip(outputs, node.children[0].outputs, strict=True)
            return {mine: below[theirs] for mine, theirs in pairs if theirs in below}
        below = self.below(node)
        if node.name == "Union":
            return self._of_union(node, below)
        passed = {each for child in node.children for each in child.outputs}
        found = self._unmatched(node) | {each: below[each] for each in outputs if each in below}
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
        if node.name in EXECUTED:  # their results go by ids of their own
            named = {each: why or general for each, why in named.items()}
        for each in made:
            why = self.all.get(each) or named.get(each, general)
            if why:
                found[each] = why
        return self._over_rows(node) | found

    def _held(self, node: Node) -> dict[int, str]:
        """Return the columns that are given, or those of a plan that is executed in another place."""
        found = {each: self._given[each] for each in node.outputs if each in self._given}
        inside = held(node)
        if inside is not None:
            below = self.of(inside)
            pairs = zip(held_columns(node), inside.outputs, strict=True)
            found |= {mine: below[theirs] for mine, theirs in pairs if theirs in below}
        return found

    def _unmatched(self, node: Node) -> dict[int, str]:
        """Return the columns that are null where an outer join finds no row, if a replay may find one."""
        sides = OPTIONAL.get(join_type(node), ()) if node.name == "Join" else ()
        found: dict[int, str] = {}
        for side in (node.children[each] for each in sides):
            why = self.decides(Choice(node, tuple(node.expressions), (side,)))
            found |= dict.fromkeys(side.outputs, why) if why else {}
        return found

    def _over_rows(self, node: Node) -> dict[int, str]:
        """Return the columns that are computed over several rows, if a replay may find others there."""
        columns = over_rows(node)
        why = next(filter(None, map(self.decides, members(node, self._has_records) if columns else ())), None)
        return dict.fromkeys(columns, why) if why else {}

    def _of_union(self, node: Node, below: dict[int, str]) -> dict[int, str]:
        """A column may differ if a branch's does, or if it depends on the branch, and a record may be in another."""
        found: dict[int, str] = {}
        moves = next(filter(None, map(self._branches.decides, choices(node, self._has_records))), None)
        for mine, theirs in zip(node.outputs, zip(*(each.outputs for each in node.children), strict=True), strict=True):
            why = next((below[each] for each in theirs if each in below), None)
            if why is None and moves is not None and not same_columns(node, theirs):
                why = moves
            if why is not None:
                found[mine] = why
        return found

    def as_executed(self, origin: Callable[[Node], str | None], given: dict[int, str]) -> Doubts:
        """Return the doubts of the plan that Spark has made of this one, for whose columns these are `given` too."""
        return Doubts(self._patterns, origin, clock=self._clock, tables=self._tables, known=self.all, given=given)

    def decides(self, choice: Choice) -> str | None:
        """Return why other records may come out of an operator on a replay; None if they stay the same."""
        if choice.why:
            return choice.why
        for table in choice.tables:
            self.of(table)
            for each in table:
                why = _drawn(each) or self._chosen(each) if each.children else self._origin(each)
                if why:
                    return why
        below = self.below(choice.node)
        return next(filter(None, (self.why(each, below) for each in choice.expressions)), None)

    def _chosen(self, node: Node) -> str | None:
        """Return why an operator may keep other rows on a replay: it goes by what may differ, or by their order."""
        if node.name in LIMITS:
            return LIMITED
        below = self.below(node) if node.name in {"Filter", "Join"} else {}
        used = (each for expression in (node.expressions if below else ()) for each in references(expression))
        # Of the rows with one number there is one, whichever it is.
        return next((below[each] for each in used if each in below and each not in self._numbers), None)

    def why(self, expression: Any, below: dict[int, str] | None = None) -> str | None:
        """Return what makes a value differ on a replay; None if it stays the same."""
        below = self.all if below is None else below
        for each in references(expression):
            if each in below:
                return below[each]
        if not expression.deterministic():
            return _by_chance(expression)
        if self._clock:
            for each in clocks(expression, self._patterns):
                return f"{called(each)}, which is later on a replay"
        if not expression.containsPattern(self._patterns.subquery):
            return None
        if self._tables:
            return "a subquery, whose table may have changed before a replay"
        return next(filter(None, map(self._within, parts(expression, self._asks))), None)

    def _asks(self, expression: Any) -> bool:
        return bool(expression.containsPattern(self._patterns.subquery))

    def _within(self, subquery: Any) -> str | None:
        """Return why a subquery may give another value on a replay, its tables aside."""
        inside = tree(subquery.plan())
        return self.decides(Choice(inside, (), (inside,))) or next(iter(self.of(inside).values()), None)


def _drawn(node: Node) -> str | None:
    """Return why chance may keep other rows of a table on a replay."""
    if node.name == "Sample":
        return "a sample of a table, which may have other rows on a replay"
    for each in node.expressions if node.name in {"Filter", "Join"} else ():
        if not each.deterministic():
            return _by_chance(each)
    return None


def _by_chance(expression: Any) -> str:
    """Say what makes an expression differ on a replay."""
    chance = next(parts(expression, lambda each: not each.deterministic()))
    return f"{called(chance)}, which may give a different value on a replay"
