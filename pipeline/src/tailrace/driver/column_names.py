"""What Spark prints of a shuffle, with names that a later run gives to the same columns.

Spark tells two columns of one name apart by ids, which are of one session. Without them, a shuffle by one looks like a
shuffle by the other, and which of two joins shuffles may depend on the sizes of tables. So a column has the number that
it has among those of its name in the analysed plan, which no size changes.
"""

from __future__ import annotations

import re
from typing import Any

from tailrace.driver.catalyst import Node, items

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

    def printed(self, partitioning: Any) -> str:
        """Return how Spark prints a partitioning, with these numbers instead of this session's ids."""

        def numbered(found: re.Match[str]) -> str:
            number = self._numbers.get(int(found[1]))
            return "" if number is None else f"~{number}"

        return self._column.sub(numbered, str(partitioning.toString()))
