"""What deals the rows of a batch that Spark planned out to its sink partitions: shuffles, and the branches of unions.

A job that uses only the drop-in has no function whose files could be compared. So the keys are written down as Spark
has planned them, and the conditions of branches as Spark has analysed them, each with the expressions that its columns
come from, and without the ids of this session. Spark prints only the name of a Python function, so a digest of its code
is added.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from tailrace.driver.branches import Choice, HasRecords, choices, records_of, streams, unions
from tailrace.driver.catalyst import Node, evaluated, items, references, tree
from tailrace.driver.column_names import ColumnNames
from tailrace.driver.dealing import join_type
from tailrace.driver.python_functions import commands
from tailrace.spark_stream import function_digest
from tailrace.spark_stream.executed import SINGLE, nodes, partitioning

# The ids that Spark gives to columns, and the numbers by which it tells generated names apart.
_IDS = re.compile(r"(_\d+)?#\d+L?")


@dataclass(frozen=True)
class ShuffleKeys:
    """Digests of the shuffles in what Spark executes, and of the branches of unions; empty if there are none."""

    code: str
    printed: str  # of what Spark prints of the shuffles alone, which is all that earlier versions noted


NONE = ShuffleKeys("", "")


def digest(query: Any, batch: Any) -> ShuffleKeys:
    """Return digests of the shuffles of a query and of its batch."""
    below, above = tree(query.executedPlan()), tree(batch.executedPlan())
    columns = _Columns()
    columns.add(below)
    columns.add(above, below)
    found = [columns.partitioning(node) for root in (below, above) for node in nodes(root) if node.name == "Exchange"]
    printed = _digest(found) if found else ""
    functions = columns.functions
    return ShuffleKeys(_digest([printed, *functions]) if any(functions) else printed, printed)


def with_branches(keys: ShuffleKeys, query: Any, batch: Any, number: int) -> ShuffleKeys:
    """Add what decides the branch of a record; the plans are logical, and `number` is the RDD of the batch."""
    below, above = tree(query), tree(batch)
    found = [*_choices(below, streams), *_choices(above, records_of(number))]
    if not found:
        return keys
    columns = _Columns()
    columns.add(below)
    columns.add(above, below)
    texts = [[columns.choice(each) for each in union] for union in found]
    return ShuffleKeys(_digest([keys.code, texts, *columns.functions]), keys.printed)


def branches_of_stream(root: Node) -> str:
    """Return a digest of what decides the branch of a record between a query's source and its sink; empty: nothing.

    The plan is the analysed one. What Tailrace does before the function is the same in each branch, and its functions
    hold what each run has anew.
    """
    found = _choices(root, streams)
    if not found:
        return ""
    columns = _Columns(passed_over=b"tailrace.", short=True)
    columns.add(root)
    texts = [[columns.choice(each) for each in union] for union in found]
    return _digest([texts, *columns.functions])


def _choices(root: Node, has_records: HasRecords) -> list[list[Choice]]:
    return [list(choices(union, has_records)) for union in unions(root, has_records)]


def of_stream(executed: Node, names: ColumnNames) -> tuple[str, ...]:
    """Return the shuffles between a query's source and its sink; `names` are of the stream's analysed plan."""
    return tuple(
        names.printed(node)
        for node in nodes(executed)
        if node.name == "Exchange" and any(each.name.startswith("MicroBatchScan") for each in node)
    )


def _digest(found: list[Any]) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]


@dataclass
class _Columns:
    """Where the columns of the plans come from, by their ids."""

    made: dict[int, list[Any]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)  # digests of the Python functions below the keys, as they come
    passed_over: bytes = b""  # in the pickles of the functions of which there is none
    short: bool = False  # whether columns are told by digests, so that a chain of them stays short
    _known: dict[int, list[Any]] = field(default_factory=dict)

    def add(self, root: Node, before: Node | None = None) -> None:
        """Note what each operator makes; an RDD of the batch holds the columns of the query `before` it."""
        for node in nodes(root):
            outputs = items(node.plan.output())
            self.names |= {each.exprId().id(): each.name() for each in outputs}
            passed = {each for child in node.children for each in child.outputs}
            own = [each.exprId().id() for each in outputs if each.exprId().id() not in passed]
            if not node.children:
                theirs = items(before.plan.output()) if before is not None else []
                if ("ExistingRDD" in node.name or node.name == "LogicalRDD") and len(theirs) == len(outputs):
                    self._note({mine: [each] for mine, each in zip(own, theirs, strict=True)})
                continue
            named = {each.exprId().id(): [each.child()] for each in node.expressions if _is(each, "Alias")}
            named |= {column: [call] for column, call in evaluated(node).items()}
            unnamed = [each for each in node.expressions if not (_is(each, "Alias") or _is(each, "AttributeReference"))]
            self._note({each: named.get(each, unnamed) for each in own})

    def _note(self, made: dict[int, list[Any]]) -> None:
        self.made |= {each: how for each, how in made.items() if each not in self.made}

    def partitioning(self, exchange: Node) -> list[Any]:
        """Describe how a shuffle deals rows out."""
        kind = partitioning(exchange)
        keys = [] if kind == SINGLE else items(exchange.plan.outputPartitioning().children())
        return [kind, *(self._text(each) for each in keys)]

    def choice(self, choice: Choice) -> list[Any]:
        """Describe what decides which records come out of an operator of a branch."""
        kind = [choice.node.name, join_type(choice.node) if choice.node.name == "Join" else ""]
        tables = [_constant(each) for table in choice.tables for each in table if table is not choice.node]
        return [*kind, *(self._text(each) for each in choice.expressions), *tables]

    def _text(self, expression: Any) -> list[Any]:
        told = [each for each in commands(expression) if not self.passed_over or self.passed_over not in each]
        self.functions += map(function_digest.digest, told)
        return [_IDS.sub("", expression.toString()), *(self._origin(each) for each in references(expression))]

    def _origin(self, column: int) -> list[Any]:
        if column not in self._known:
            self._known[column] = []  # an operator's expressions may use its own columns
            made = self.made.get(column)
            name = self.names.get(column, "")
            texts = [name] if made is None else [self._text(each) for each in made]
            self._known[column] = [_digest(texts)] if self.short else texts
        return self._known[column]


def _constant(node: Node) -> str:
    """Describe an operator of a table that cannot change, with its rows if the plan holds them."""
    if node.name == "LocalRelation" and not node.plan.data().isEmpty():
        return str(node.plan.toSQL("t"))
    return _IDS.sub("", node.plan.simpleString(25))


def _is(expression: Any, kind: str) -> bool:
    return bool(expression.getClass().getSimpleName() == kind)
