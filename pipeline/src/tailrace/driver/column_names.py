"""What Spark prints of a shuffle, with names that a later run gives to the same columns.

Spark tells two columns of one name apart by ids, which are of one session. Without them, a shuffle by one looks like a
shuffle by the other, and which of two joins shuffles may depend on the sizes of tables. So a column has the number that
it has among those of its name in the analysed plan, which no size changes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Any

from tailrace.driver.catalyst import Node, evaluated, items

_COLUMN = re.compile(r"#(\d+)L?")
_GENERATED = re.compile(r"(?:_\d+)?#(\d+)L?")  # without the number in which names may end that Spark has made
_NUMBER = re.compile(r"_\d+$")


def unnumbered(partitioning: Any) -> str:
    """Return how Spark prints a partitioning, without ids."""
    return _COLUMN.sub("", str(partitioning.toString()))


class ColumnNames:
    """The columns of an analysed plan, numbered among those of their name; `progress.plan` reads the numbers."""

    def __init__(self, analysed: Node, *, generated: bool = False) -> None:
        self._column = _GENERATED if generated else _COLUMN
        self._numbers: dict[int, int] = {}
        seen: dict[str, int] = {}
        for node in reversed(list(analysed)):  # an operator above may give its columns the names of those below
            for each in items(node.plan.output()):
                column, name = each.exprId().id(), each.name()
                name = _NUMBER.sub("", name) if generated else name
                if column not in self._numbers:
                    self._numbers[column] = seen[name] = seen.get(name, 0) + 1

    def printed(self, exchange: Node) -> str:
        """Return how Spark prints what a shuffle partitions by, with these numbers instead of this session's ids.

        Spark's optimizer gives the results of Python functions in a join's condition one name, too. Their number is of
        the call.
        """

        def numbered(found: re.Match[str]) -> str:
            column = int(found[1])
            number = self._numbers.get(column)
            if number is None and (call := next(_calls(exchange, column), None)) is not None:
                number = zlib.crc32(self._column.sub(numbered, str(call.toString())).encode())
            return "" if number is None else f"~{number}"

        return self._column.sub(numbered, str(exchange.plan.outputPartitioning().toString()))


def _calls(root: Node, column: int) -> Iterator[Any]:
    """Yield the call of a Python function that makes a column."""
    for node in root:
        if (call := evaluated(node).get(column)) is not None:
            yield call
