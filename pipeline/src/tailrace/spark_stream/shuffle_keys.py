"""What deals the rows of a batch that Spark planned out to its sink partitions: shuffles, and the branches of unions.

A job that uses only the drop-in has no function whose files could be compared. So the keys are written down as Spark
has planned them, and the conditions of branches as Spark has analysed them, each with the expressions that its columns
come from, and without the ids of this session. Spark prints only the name of a Python function, so a digest of its code
is added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tailrace.driver.branches import Choice, choices, records_of, streams, unions
from tailrace.driver.catalyst import Node, evaluated, items, references, tree
from tailrace.driver.column_names import ColumnNames
from tailrace.driver.python_functions import commands
from tailrace.spark_stream import function_digest
from tailrace.spark_stream.executed import keys_of, nodes, of_rows, partitioning
from tailrace.spark_stream.steady_text import (
    constant,
    holds_rows,
    in_full,
    is_a,
    operator,
    steadily_written,
    table,
    written,
)

_NAMED = frozenset({"CTERelationRef", "SubqueryAlias", "View"})  # by names and numbers of this session
_PASSING = frozenset({"Project", "Union"})  # whose columns tell what they do
_AND = ","
_ENOUGH = 16  # characters of a digest that tells a few columns apart
_LONG = 1 << 16  # characters; columns that are made of each other in turn would double the text each time


@dataclass(frozen=True)
class ShuffleKeys:
    """Digests of the shuffles in what Spark executes, and of the branches of unions; empty if there are none."""

    code: str
    printed: str  # of what Spark prints of the shuffles alone, which is all that earlier versions noted
    branches: tuple[str, ...] = ()  # digests of what each branch of the unions makes, in their order


NONE = ShuffleKeys("", "")


def digest(query: Any, batch: Any) -> ShuffleKeys:
    """Return digests of the shuffles of a query and of its batch."""
    below, above = tree(query.executedPlan()), tree(batch.executedPlan())
    columns = _Columns()
    columns.add(below)
    columns.add(above, below)
    with in_full(query.analyzed()):
        shuffles = (node for root in (below, above) for node in of_rows(root) if node.name == "Exchange")
        found = [columns.partitioning(node) for node in shuffles]
        others = columns.others()  # which adds functions
    printed = _digest(found) if found else ""
    more = [*columns.functions, *others]
    return ShuffleKeys(_digest([printed, *more]) if any(more) else printed, printed)


def with_branches(keys: ShuffleKeys, query: Any, batch: Any, number: int) -> ShuffleKeys:
    """Add what decides the branch of a record; the plans are logical, and `number` is the RDD of the batch."""
    below, above = tree(query), tree(batch)
    found = [
        (union, list(choices(union, has_records)))
        for root, has_records in ((below, streams), (above, records_of(number)))
        for union in unions(root, has_records)
    ]
    if not found:
        return keys
    columns = _Columns()
    columns.add(below)
    columns.add(above, below)
    with in_full(query):
        texts = [[columns.choice(each) for each in decided] for _, decided in found]
        others = columns.others()  # which adds functions
        branches = tuple(each for union, _ in found for each in _made(union, columns))
    return ShuffleKeys(_digest([keys.code, texts, *columns.functions, *others]), keys.printed, branches)


def moved(was: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Return whether something that a branch made would now be written by the tasks of another one.

    What is new is mended, and what two branches have now is still where it was.
    """
    if len(was) != len(now):
        return False
    before, after = ([set(each.split(_AND)) for each in cut] for cut in (was, now))
    came = [mine - theirs for mine, theirs in zip(after, before, strict=True)]
    went = [theirs - mine for mine, theirs in zip(after, before, strict=True)]
    return not set().union(*came).isdisjoint(set().union(*went))


def _made(union: Node, columns: _Columns) -> Iterator[str]:
    """Yield what tells each branch of a union: digests of each column that it makes, and of each of its operators.

    Columns count by their own names, since a union by name puts them in the order of its first branch, and by their
    places, which alone count in others. A function counts with its code and without, since a mended one may be that of
    all branches.
    """
    for branch in union.children:
        found: set[str] = set()
        for place, column in enumerate(branch.outputs):
            where = columns.names.get(column, ""), place
            found |= {_digest([at, each]) for at in where for each in columns.made_of(column)}
        found |= {_digest(columns.does(node)) for node in branch if node.name not in _PASSING | _NAMED}
        yield _AND.join(sorted(each[:_ENOUGH] for each in found))


def of_stream(executed: Node, names: ColumnNames) -> tuple[str, ...]:
    """Return the shuffles between a query's source and its sink; `names` are of the stream's analysed plan."""
    return tuple(
        names.printed(node)
        for node in nodes(executed)
        if node.name == "Exchange" and any(each.name.startswith("MicroBatchScan") for each in node)
    )


def _digest(found: list[Any]) -> str:
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:32]


def _shortened(found: list[Any]) -> list[Any]:
    return found if len(json.dumps(found)) < _LONG else [_digest(found)]


@dataclass
class _Columns:
    """Where the columns of the plans come from, by their ids."""

    made: dict[int, list[Any]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)  # digests of the Python functions below the keys, as they come
    _united: dict[int, list[int]] = field(default_factory=dict)  # the columns of a union's other branches
    _used: dict[int, None] = field(default_factory=dict)  # united columns below the keys, as they come
    _leaves: dict[int, Node] = field(default_factory=dict)  # what the columns that are not made of others are read from
    _known: dict[int, list[Any]] = field(default_factory=dict)
    _told: dict[int, tuple[str, str]] = field(default_factory=dict)
    _digests: dict[bytes, str] = field(default_factory=dict)  # of functions, by their pickles

    def add(self, root: Node, before: Node | None = None) -> None:
        """Note what each operator makes; an RDD of the batch holds the columns of the query `before` it."""
        for node in nodes(root):
            outputs = items(node.plan.output())
            self.names |= {each.exprId().id(): each.name() for each in outputs}
            passed = {each for child in node.children for each in child.outputs}
            own = [each.exprId().id() for each in outputs if each.exprId().id() not in passed]
            if node.name == "Union":  # its columns have the ids of those of its first branch
                first, *others = (child.outputs for child in node.children)
                for mine, *theirs in zip(first, *others, strict=True):
                    known = self._united.setdefault(mine, [])
                    known += [each for each in theirs if each not in known]
            if not node.children:
                self._leaves |= dict.fromkeys(own, node)
                theirs = items(before.plan.output()) if before is not None else []
                if holds_rows(node) and len(theirs) == len(outputs):
                    self._note({mine: [each] for mine, each in zip(own, theirs, strict=True)})
                continue
            if node.name == "CTERelationRef":  # one that comes again has columns of its own
                theirs = items(node.children[0].plan.output())
                pairs = zip(node.outputs, theirs, strict=True)
                self._note({mine: [each] for mine, each in pairs if mine in own})
                continue
            named = {each.exprId().id(): [each.child()] for each in node.expressions if is_a(each, "Alias")}
            named |= {column: [call] for column, call in evaluated(node).items()}
            unnamed = [
                each for each in node.expressions if not (is_a(each, "Alias") or is_a(each, "AttributeReference"))
            ]
            self._note({each: named.get(each, unnamed) for each in own})

    def _note(self, made: dict[int, list[Any]]) -> None:
        self.made |= {each: how for each, how in made.items() if each not in self.made}

    def partitioning(self, exchange: Node) -> list[Any]:
        """Describe how a shuffle deals rows out."""
        return [partitioning(exchange), *(self._text(each) for each in keys_of(exchange))]

    def choice(self, choice: Choice) -> list[Any]:
        """Describe what decides which records come out of an operator of a branch."""
        below = [each for table in choice.tables for each in table if table is not choice.node]
        self.functions += [code for each in below for it in each.expressions for code in self._code(it)]
        tables = [constant(each) for each in below if each.name not in _NAMED]
        return [*operator(choice.node), *(self._text(each) for each in choice.expressions), *tables]

    def others(self) -> list[list[Any]]:
        """Describe what other branches of unions make of the columns that were described, by their first branches."""
        found: list[list[Any]] = []
        done: set[int] = set()
        while left := [each for each in self._used if each not in done]:
            for each in left:
                found += [self._origin(it) for it in self._united[each]]
            done.update(left)
        return found

    def made_of(self, column: int) -> tuple[str, str]:
        """Return digests of what a column holds, with the code of its functions and without.

        Both leave out what chance or the time makes of it. Spark gives the columns of later branches other ids, by
        operators that the first one does not have.
        """
        if column not in self._told:
            self._told[column] = ("", "")
            made = self.made.get(column)
            if made is not None and len(made) == 1 and is_a(made[0], "AttributeReference"):
                self._told[column] = self.made_of(made[0].exprId().id())
            elif made is not None:
                every = [self._made_of(each) for each in made]
                self._told[column] = _digest([each for each, _ in every]), _digest([each for _, each in every])
            else:
                leaf = self._leaves.get(column)
                told = _digest([self.names.get(column, ""), "" if leaf is None else table(leaf)])
                self._told[column] = told, told
        return self._told[column]

    def does(self, node: Node) -> list[Any]:
        """Describe an operator, without the code of its functions."""
        if not node.children:
            return [table(node)]
        return [*operator(node), *(self._made_of(each)[1] for each in node.expressions)]

    def _made_of(self, expression: Any) -> tuple[list[Any], list[Any]]:
        text = steadily_written(expression)
        below = [self.made_of(each) for each in references(expression)]
        return [text, *self._code(expression), *(each for each, _ in below)], [text, *(each for _, each in below)]

    def _text(self, expression: Any) -> list[Any]:
        self.functions += self._code(expression)
        return [written(expression), *(self._origin(each) for each in references(expression))]

    def _code(self, expression: Any) -> list[str]:
        """Return digests of the Python functions in an expression."""
        found = list(commands(expression))
        self._digests |= {each: function_digest.digest(each) for each in found if each not in self._digests}
        return [self._digests[each] for each in found]

    def _origin(self, column: int) -> list[Any]:
        if column in self._united:
            self._used[column] = None
        if column not in self._known:
            self._known[column] = []  # an operator's expressions may use its own columns
            made = self.made.get(column)
            name = self.names.get(column, "")
            self._known[column] = [name] if made is None else _shortened([self._text(each) for each in made])
        return self._known[column]
