"""What Spark's plan of a stream tells before anything runs.

Whether the stream keeps state, and whether its batches can be cut the same way again: a shuffle that deals records out
by their order of arrival, or by a sample, cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from tailrace.errors import ConfigInvalid, FunctionInvalid

_STATEFUL = {
    "Aggregate": "it aggregates",
    "Distinct": "it removes duplicates",
    "Deduplicate": "it removes duplicates",
    "DeduplicateWithinWatermark": "it removes duplicates",
    "EventTimeWatermark": "it has a watermark",
    "FlatMapGroupsInPandasWithState": "it keeps state by group",
    "FlatMapGroupsWithState": "it keeps state by group",
    "GlobalLimit": "it limits the whole stream",
    "TransformWithState": "it keeps state by key",
    "TransformWithStateInPySpark": "it keeps state by key",
}


def check(rows: DataFrame, checkpoint: str) -> int:
    """Refuse a stream that cannot work; how many shuffles it has."""
    reason = stateful_reason(rows)
    if reason and checkpoint == "ledger":
        raise ConfigInvalid(
            f"the pipeline is stateful ({reason}) and `checkpoint: ledger` holds no state",
            kept="nothing was read or written",
            then="set checkpoint to a folder that outlives the driver, for example checkpoint: state/ or "
            "s3a://bucket/state",
        )
    return check_shuffles(rows)


def stateful_reason(rows: DataFrame) -> str | None:
    """Why the stream needs a store for its state; None for a stateless one."""
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if name in _STATEFUL and node.isStreaming():
            return _STATEFUL[name]
        if name == "Join" and node.left().isStreaming() and node.right().isStreaming():
            return "it joins two streams"
    return None


_SHUFFLES = frozenset({"Aggregate", "Distinct", "Join", "RepartitionByExpression", "Sort", "Window"})


def check_shuffles(rows: DataFrame) -> int:
    """How many shuffles the stream may have; one that cannot be repeated is refused."""
    count = 0
    for node in _nodes(rows._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if name == "RebalancePartitions" or (name == "Repartition" and node.shuffle()):
            raise _unrepeatable(f"{name} deals records out by their order of arrival")
        if name == "RepartitionByExpression":
            keys = node.partitionExpressions()
            if keys.isEmpty():
                raise _unrepeatable("a repartition without columns deals records out by their order of arrival")
            for number in range(keys.size()):
                key = keys.apply(number)
                # Spark takes what is not deterministic out into a column of this name.
                chance = not key.deterministic() or "_nondeterministic" in key.sql()
                if chance or key.getClass().getSimpleName() == "SortOrder":
                    raise _unrepeatable(f"the repartition by {key.sql()} is not the same when it is computed again")
        count += name in _SHUFFLES
    return count


def _unrepeatable(why: str) -> FunctionInvalid:
    return FunctionInvalid(
        f"the function's rows cannot be cut the same way again: {why}",
        kept="nothing was read or written",
        then="use process.partitions, or repartition(n, column) by columns of the records",
    )


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))
