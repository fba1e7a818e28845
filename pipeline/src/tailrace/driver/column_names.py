"""What Spark prints of a shuffle, with names that a later run gives to the same columns.

Spark tells two columns of one name apart by ids, which are of one session. Without them, a shuffle by one looks like a
shuffle by the other, and which of two joins shuffles may depend on the sizes of tables. So a column has the number that
it has among those of its name in the analysed plan, which no size changes. Spark's optimizer makes columns of its own:
the result of a Python function in a join's condition, a field taken out of a structure. Such a column has a number made
of the expression, and of the place of the call in the analysed plan.
"""

from __future__ import annotations

import re
import zlib
from functools import cached_property
from typing import Any

from tailrace.driver.catalyst import Node, evaluated, items, walk

_COLUMN = re.compile(r"#(\d+)L?")
_GENERATED = re.compile(r"(?:_\d+)?#(\d+)L?")  # without the number in which names may end that Spark has made
_NUMBER = re.compile(r"_\d+$")
_LAMBDA = re.compile(r"(\blambda \w+)_\d+\b")  # "lambda x_4": the name, and how many Spark had named


def renumbered(how: tuple[str, ...]) -> tuple[str, ...]:
    """Number the variables of lambda functions from 1 in each shuffle; Spark counts those of all sessions on."""

    def one(text: str) -> str:
        names: dict[str, str] = {}
        return _LAMBDA.sub(lambda each: names.setdefault(each[0], f"{each[1]}_{len(names) + 1}"), text)

    return tuple(map(one, how))


def unnumbered(partitioning: Any) -> str:
    """Return how Spark prints a partitioning, without ids."""
    return _COLUMN.sub("", str(partitioning.toString()))


class ColumnNames:
    """The columns of an analysed plan, numbered among those of their name; `progress.plan` reads the numbers."""

    def __init__(self, analysed: Node, *, generated: bool = False) -> None:
        self._column = _GENERATED if generated else _COLUMN
        self._analysed = analysed
        self._numbers: dict[int, int] = {}
        seen: dict[str, int] = {}
        for node in reversed(list(analysed)):  # an operator above may give its columns the names of those below
            for each in items(node.plan.output()):
                column, name = each.exprId().id(), each.name()
                name = _NUMBER.sub("", name) if generated else name
                if column not in self._numbers:
                    self._numbers[column] = seen[name] = seen.get(name, 0) + 1

    def printed(self, exchange: Node) -> str:
        """Return how Spark prints what a shuffle partitions by, with these numbers instead of this session's ids."""
        return self._text(exchange.plan.outputPartitioning(), _Made(exchange))

    def _text(self, expression: Any, made: _Made) -> str:
        def numbered(found: re.Match[str]) -> str:
            number = self._number(int(found[1]), made)
            return "" if number is None else f"~{number}"

        return self._column.sub(numbered, str(expression.toString()))

    def _number(self, column: int, made: _Made) -> int | None:
        if column in self._numbers:
            return self._numbers[column]
        if (call := made.calls.get(column)) is not None:  # one call may have been used for two columns of one name
            return self._digest(items(call.children()), made, self._calls.get(call.resultId().id()))
        if (child := made.aliases.pop(column, None)) is None:  # once: an expression may keep the id of what it uses
            return None
        number = self._digest([child], made)
        made.aliases[column] = child
        return number

    def _digest(self, expressions: list[Any], made: _Made, call: int | None = None) -> int:
        texts = renumbered(tuple(self._text(each, made) for each in expressions))
        return zlib.crc32(repr((call, texts)).encode())

    @cached_property
    def _calls(self) -> dict[int, int]:
        """Number the calls of Python functions; Spark keeps the id of a call in every copy."""
        found: dict[int, int] = {}
        for node in reversed(list(self._analysed)):
            for each in (part for expression in node.expressions for part in walk(expression)):
                if each.getClass().getSimpleName() == "PythonUDF":
                    found.setdefault(each.resultId().id(), len(found) + 1)
        return found


class _Made:
    """What makes the columns below a shuffle."""

    def __init__(self, exchange: Node) -> None:
        self._below = exchange

    @cached_property
    def calls(self) -> dict[int, Any]:
        """The columns that Python functions make, each with its call."""
        return {column: call for node in self._below for column, call in evaluated(node).items()}

    @cached_property
    def aliases(self) -> dict[int, Any]:
        """The columns that other expressions make, each with its expression."""
        found = (each for node in self._below for each in node.expressions)
        return {each.exprId().id(): each.child() for each in found if each.getClass().getSimpleName() == "Alias"}
