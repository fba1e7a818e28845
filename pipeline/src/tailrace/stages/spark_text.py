"""Spark's own text about a mistake, in one line: for messages that name the cause.

Spark's errors have many lines, with the query and its plan; those of its parser begin with an empty one.
"""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """Return the first line that says something; the error's type if none does."""
    lines = (line.strip().rstrip(";") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)
