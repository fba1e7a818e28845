"""What Spark executes of a query and its batches: how it deals the rows out, which may change from batch to batch.

The plans that Spark has analysed do not show how it joins, and some operators become joins only later: a subquery, an
equality behind a product of tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tailrace.driver.branches import made_from
from tailrace.driver.catalyst import Node, held, items, tree
from tailrace.driver.column_doubts import ADVICE, COMPUTED
from tailrace.driver.repeatable import BY_COLUMNS, Judged, of_columns, unrepeatable

SINGLE = "SinglePartition$"
_KEYLESS = frozenset({SINGLE, "RoundRobinPartitioning", "UnknownPartitioning"})
_SHUFFLING = frozenset({"ShuffledHashJoin", "SortMergeJoin"})
_BROADCASTING = frozenset({"BroadcastHashJoin", "BroadcastNestedLoopJoin"})
_TO_ONE = frozenset({"CollectLimit", "CollectTail", "TakeOrderedAndProject"})


@dataclass(frozen=True)
class Operator:
    """A stateful operator of the query, with the number of partitions and the stores of its state."""

    number: int
    partitions: int
    stores: tuple[str, ...]

    def folders(self) -> Iterator[str]:
        """Yield the folders of its state, under the checkpoint."""
        for partition in range(self.partitions):
            for store in self.stores:
                place = f"state/{self.number}/{partition}"
                yield place if store == "default" else f"{place}/{store}"


def joined(executed: Node) -> bool:
    """Return whether Spark shuffles for a join with a table in this plan."""
    return any(node.name.partition("(")[0] in _SHUFFLING for node in _dealt(executed))


def check_sent(executed: Node, batch: int) -> None:
    """Refuse a plan that sends the records to the tasks of another table, which would decide where they are.

    `batch` is the RDD of a batch.
    """
    has_records = _records_of(batch)
    for node in nodes(executed):
        if node.name.partition("(")[0] in _BROADCASTING:
            left, right = node.children
            built, other = (left, right) if node.plan.buildSide().toString() == "BuildLeft" else (right, left)
            if has_records(built) and not has_records(other) and other.plan.outputPartitioning().numPartitions() != 1:
                raise unrepeatable(
                    "Spark would send the records to the tasks that read another table",
                    "put broadcast(…) around the other table, not around the records",
                )


def sized(*executed: Node) -> bool:
    """Return whether adaptive execution may merge or split a shuffle's partitions in one of these plans."""
    adaptive = (node for plan in executed for node in _dealt(plan) if node.name.startswith("AdaptiveSparkPlan"))
    below = (each for node in adaptive for each in _dealt(tree(node.plan.initialPlan())))
    return any(each.name == "Exchange" and partitioning(each) != SINGLE for each in below)


def check_keys(executed: Node, judged: Judged, batch: int = -1) -> None:
    """Refuse a shuffle of the records by a key that may differ on a replay.

    `judged` is the plan that was analysed, and `batch` the RDD that it begins with, if it is a batch's.
    """
    begun = [each for each in nodes(executed) if "ExistingRDD" in each.name and each.plan.rdd().id() == batch]
    given = {column: why for each in begun for column, why in of_columns(each, judged.given).items()}
    ours = made_from(batch)

    def origin(node: Node) -> str | None:
        rdd = node.plan.rdd() if "ExistingRDD" in node.name else None
        return COMPUTED if rdd is not None and rdd.id() != batch and ours(rdd) else None

    doubts = judged.known.as_executed(origin, given)
    for exchange in _deciding(executed, _records_of(batch)):
        for key in keys_of(exchange):
            why = doubts.why(key, doubts.below(exchange))
            if why:
                raise unrepeatable(f"the shuffle by {key.sql()} depends on {why}", ADVICE.get(why, BY_COLUMNS))


def _deciding(node: Node, has_records: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the last shuffles of the records: where a row is then does not depend on those before."""
    if node.name == "BroadcastExchange" or _merges(node) or not has_records(node):
        return
    if node.name == "Exchange":
        yield node
        return
    for each in _below(node):
        yield from _deciding(each, has_records)


def _records_of(batch: int) -> Callable[[Node], bool]:
    """Return whether a plan has records: of a stream, or of the RDD with this id, or of one that was made from it."""
    ours, known = made_from(batch), dict[Node, bool]()

    def has_records(node: Node) -> bool:
        if node not in known:
            begins = node.name.startswith("MicroBatchScan") or ("ExistingRDD" in node.name and ours(node.plan.rdd()))
            known[node] = begins or any(map(has_records, _below(node)))
        return known[node]

    return has_records


def _below(node: Node) -> Iterator[Node]:
    yield from node.children
    inside = held(node)
    if inside is not None:
        yield inside


def partitioning(exchange: Node) -> str:
    """Return the name of the way in which a shuffle deals rows out."""
    return str(exchange.plan.outputPartitioning().getClass().getSimpleName())


def keys_of(exchange: Node) -> list[Any]:
    """Return the expressions by whose values a shuffle deals rows out."""
    return [] if partitioning(exchange) in _KEYLESS else items(exchange.plan.outputPartitioning().children())


def of_rows(root: Node) -> Iterator[Node]:
    """Yield the same as `nodes`, but for what computes a table that every task has as a whole."""
    yield root
    inside = None if root.name in {"BroadcastExchange", "ReusedExchange"} else held(root)
    below = () if root.name == "BroadcastExchange" else (*root.subqueries, *root.children)
    for each in (*below, *([] if inside is None else [inside])):
        yield from of_rows(each)


def nodes(root: Node) -> Iterator[Node]:
    """Yield the operators of a plan, and those inside the ones that hold a plan of their own."""
    for node in root:
        yield node
        if node.name != "ReusedExchange" and (inside := held(node)) is not None:
            yield from nodes(inside)


def _dealt(node: Node) -> Iterator[Node]:
    """Yield the same, but for what computes a table or a single value for each task, or what only one task writes."""
    if node.name == "BroadcastExchange":
        return
    yield node
    if _merges(node):
        return
    for each in _below(node):
        yield from _dealt(each)


def _merges(node: Node) -> bool:
    """Return whether an operator puts all rows into one task without a shuffle of its own."""
    return bool(node.name in _TO_ONE or (node.name == "Coalesce" and node.plan.numPartitions() == 1))
