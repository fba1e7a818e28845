"""A function that stops reading early: it takes the first batch of its rows, and leaves the others unread."""

from __future__ import annotations

from support.pipelines import Bench

FUNCTION = "early.py:early"
_TEXT = """
    def early(frame):
        def first(batches):
            yield next(iter(batches)).select(["id"])
        return frame.select({columns}).mapInArrow(first, "id long"){then}
"""


def write(one: Bench, *columns: str, then: str = "") -> None:
    """Write it next to the pipeline; it reads these columns, and `then` is called on what it yields."""
    one.write("early.py", _TEXT.format(columns=", ".join(map(repr, columns)), then=then))
