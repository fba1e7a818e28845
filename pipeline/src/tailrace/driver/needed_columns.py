"""Column pruning: the columns of a record that a frame uses, and those of a row for the sink that are not constant.

Spark prunes unused columns in its own nodes, but not in a Python function's input and result. Pruned columns are not
read, copied or sent between the processes.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from tailrace.driver.catalyst import Node, items, tree
from tailrace.driver.frame_analysis import Leaf
from tailrace.stages.rows import ROW

# Operators that name each column that they use. A union, for example, takes its columns by position.
_NAMING = frozenset(
    {
        "ArrowEvalPython", "BatchEvalPython", "CollectMetrics", "Filter", "Generate", "Join", "MapInArrow",
        "MapInPandas", "Project", "RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort",
    }
)  # fmt: skip


def needed(frame: DataFrame, leaf: DataFrame) -> tuple[str, ...]:
    """Return the columns of `leaf` that `frame` uses, at least one; all of them if that is unknown."""
    reads = Leaf(leaf)
    root = tree(frame._jdf.queryExecution().optimizedPlan(), reads.ends)
    used = set(root.outputs)
    found: list[Node] = []
    for node in root:
        if reads.ends(node.plan, node.name):
            found.append(node)
        elif node.subqueries or (reads.among(node) and node.name not in _NAMING):
            return tuple(leaf.columns)
        else:
            used |= {each.exprId().id() for each in items(node.plan.references().toSeq())}
    if len(found) != 1:
        return tuple(leaf.columns)
    names = tuple(name for name, column in zip(leaf.columns, found[0].outputs, strict=True) if column in used)
    return names or ("offset",)


def telling(rows: DataFrame, topic: str | None) -> list[str]:
    """Return the columns of rows for the sink, except those that are always null or always the sink's own topic."""
    plan = rows._jdf.queryExecution().optimizedPlan()
    if plan.nodeName() != "Project":
        return list(ROW.names)
    constant = {each.name() for each in items(plan.projectList()) if _spared(each, topic)}
    return [name for name in ROW.names if name not in constant or name == "value"]


def _spared(column: Any, topic: str | None) -> bool:
    if column.getClass().getSimpleName() != "Alias" or column.child().getClass().getSimpleName() != "Literal":
        return False
    value = column.child().value()
    return value is None or (column.name() == "topic" and str(value) == topic)
