"""Text from Spark and for it: the cause of an error in one line, and a column's name as an expression.

Spark's errors have many lines, with the query and its plan; those of its parser begin with an empty one.
"""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """Return the first line that says something; the error's type if none does."""
    lines = (line.strip().rstrip(";") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def quoted(name: str) -> str:
    """Return a column's name such that its dots are not taken for a path."""
    return "`" + name.replace("`", "``") + "`"
