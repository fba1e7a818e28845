"""Whether Spark merges the tasks behind a shuffle in the same way each time, as `sink.partitions` asks for.

It merges neighbours, unless it knows hosts that keep a part of what a task reads: then it goes by these. Executors keep
the partitions of a cached table, and file systems those of a bucketed one. After a restart they are elsewhere, so sink
partitions would hold other rows than those of them that were delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.driver.catalyst import Node
from tailrace.driver.repeatable import unrepeatable

Ends = Callable[[Any, str], bool]

_NOWHERE = frozenset({"LocalTableScan", "Range", "Scan OneRowRelation"})  # tables that no host has
_FILES = frozenset({"BatchScanExec", "FileSourceScanExec"})  # object stores and a local folder name no hosts


def check_merging(root: Node, ends: Ends, partitions: int | None, most: int | None) -> None:
    """Refuse to merge a plan's last tasks if they also read a table that is divided like the shuffle before them.

    `ends` tells the records' own reading. A table that goes through a shuffle or a broadcast is nowhere by then.
    """
    if partitions is None or most is None or most >= partitions:
        return
    table = _beside(root, ends)
    if table is not None:
        raise unrepeatable(
            f"sink.partitions ({most}) merges the {partitions} partitions of the last shuffle, and Spark would choose "
            f"which of them by the hosts that keep those of another table ({table})",
            f"set sink.partitions to {partitions} or more, or leave it out; or neither cache nor bucket the table by "
            "the key of the join",
        )


def _beside(node: Node, ends: Ends) -> str | None:
    """Return a table that the last tasks read without a shuffle of its own."""
    if ends(node.plan, node.name) or node.name.endswith("Exchange"):
        return None
    if not node.children:
        return node.name if _has_hosts(node) else None
    return next(filter(None, (_beside(each, ends) for each in node.children)), None)


def _has_hosts(node: Node) -> bool:
    """Return whether hosts may keep parts of a table; those of a cache are not asked for, as it may be filled later."""
    if node.name in _NOWHERE:
        return False
    if node.plan.getClass().getSimpleName() not in _FILES:
        return True
    rows = node.plan.inputRDD()
    return any(not rows.preferredLocations(part).isEmpty() for part in rows.partitions())
