"""Spark's query plans, read through py4j.

Logical and physical plans are trees of Scala objects. One walk copies what the rules need into a tree of Python
objects, with the references to a common table expression resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Node:
    """One operator of a plan; `plan` is Spark's own object."""

    plan: Any
    name: str
    children: tuple[Node, ...] = ()
    subqueries: tuple[Node, ...] = ()  # plans inside the operator's expressions

    def __iter__(self) -> Iterator[Node]:
        """Yield the operator and all below it, subqueries included."""
        yield self
        for each in (*self.subqueries, *self.children):
            yield from each

    @property
    def expressions(self) -> list[Any]:
        """Spark's expressions of this operator."""
        return items(self.plan.expressions())

    @property
    def outputs(self) -> list[int]:
        """The ids of the output columns, in order."""
        return [each.exprId().id() for each in items(self.plan.output())]


@dataclass
class _Reader:
    last: Callable[[Any, str], bool]
    shared: dict[int, Any] = field(default_factory=dict)  # common table expressions by their ids

    def read(self, plan: Any) -> Node:
        name = plan.nodeName()
        if self.last(plan, name):
            return Node(plan, name)
        if name == "WithCTE":
            self.shared |= {each.id(): each.child() for each in items(plan.cteDefs())}
            return self.read(plan.plan())
        below = [self.shared[plan.cteId()]] if name == "CTERelationRef" else items(plan.children())
        subqueries = tuple(self.read(each) for each in items(plan.subqueries()))
        return Node(plan, name, tuple(self.read(each) for each in below), subqueries)


def tree(plan: Any, last: Callable[[Any, str], bool] = lambda plan, name: False) -> Node:
    """Copy a plan; `last` returns, for an operator and its name, whether to ignore everything below."""
    return _Reader(last).read(plan)


def items(sequence: Any) -> list[Any]:
    """Copy a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]


def walk(expression: Any) -> Iterator[Any]:
    """Yield an expression and all below it."""
    yield expression
    for each in items(expression.children()):
        yield from walk(each)


_CACHES = ("InMemoryTableScan", "Scan In-memory table")  # the second has a name


def held(node: Node) -> Node | None:
    """Return the plan that an operator without children holds: of a cache, of adaptive execution, or of a shuffle."""
    if node.name.startswith(_CACHES):
        return tree(node.plan.relation().cachedPlan())
    if node.name == "ReusedExchange":
        return tree(node.plan.child())
    return tree(node.plan.initialPlan()) if node.name.startswith("AdaptiveSparkPlan") else None


def held_columns(node: Node) -> list[int]:
    """Return the ids by which an operator knows the columns of the plan that it holds, in their order."""
    if node.name.startswith(_CACHES):
        return [each.exprId().id() for each in items(node.plan.relation().output())]
    return node.outputs


def parts(expression: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the smallest `wanted` parts of an expression; whatever contains such a part must be wanted too."""
    if not wanted(expression):
        return
    found = [each for child in items(expression.children()) for each in parts(child, wanted)]
    yield from found or [expression]


def references(expression: Any) -> list[int]:
    """Return the ids of the columns that an expression uses."""
    return [each.exprId().id() for each in items(expression.references().toSeq())]


_EVALUATING = frozenset({"ArrowEvalPython", "BatchEvalPython"})


def evaluated(node: Node) -> dict[int, Any]:
    """Return the columns that an operator computes by Python functions, each with its own call."""
    if node.name not in _EVALUATING:
        return {}
    made = [each.exprId().id() for each in items(node.plan.resultAttrs())]
    return dict(zip(made, items(node.plan.udfs()), strict=True))


def called(expression: Any) -> str:
    """Name an expression as a user would recognise it: `rand()`, or the name of a Python function."""
    python = expression.getClass().getSimpleName() == "PythonUDF"
    return f"{expression.name() if python else expression.prettyName().lower()}()"


class Patterns:
    """Marks that Spark puts on expressions, to find those of a kind in a large tree."""

    def __init__(self, jvm: Any) -> None:
        known = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self.current = known.CURRENT_LIKE()
        self.seeded = known.EXPRESSION_WITH_RANDOM_SEED()
        self.subquery = known.PLAN_EXPRESSION()


# What Spark marks as current without being a time: the same for the whole session.
_OF_THE_SESSION = frozenset(
    {
        "current_catalog",
        "current_database",
        "current_schema",
        "current_timezone",
        "current_user",
        "session_user",
        "user",
    }
)


def marked(expression: Any, pattern: Any, patterns: Patterns) -> list[Any]:
    """Return the parts of an expression that have a mark; subqueries are plans of their own."""
    found = parts(expression, lambda each: each.containsPattern(pattern))
    return [each for each in found if not each.containsPattern(patterns.subquery)]


def clocks(expression: Any, patterns: Patterns) -> list[Any]:
    """Return the parts of an expression that read the clock."""
    return [each for each in marked(expression, patterns.current, patterns) if each.prettyName() not in _OF_THE_SESSION]
