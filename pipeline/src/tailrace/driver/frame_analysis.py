"""Analysis of a pipeline's frame: what must be redone for each batch, and whether a replay deals out the same rows.

The driver builds one DataFrame over a leaf of its own and collects it once per batch. Spark keeps the physical plan of
a frame, and with it the time, the rows of other tables, the files of a shuffle and the seeds of random functions. This
module reads the plans and finds the least that must be redone for each batch. Counters of observe() start at 0 each
time that a plan is executed.

Whatever Structured Streaming would refuse, or would keep state for, is refused here. The logical plan shows what the
user asked for; the physical plan shows what Spark made of it, and it decides: an operator that is not known to be
repeatable is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame

from tailrace.driver.catalyst import Node, Patterns, called, clocks, items, marked, references, tree
from tailrace.driver.column_doubts import CONSTANT, Doubts, described, other_table
from tailrace.driver.column_names import ColumnNames, unnumbered
from tailrace.driver.dealing import JOINS, equated, join_type
from tailrace.driver.merging import check_merging
from tailrace.driver.repeatable import check, plans_read, unrepeatable
from tailrace.errors import ConfigInvalid, FunctionInvalid, InvariantBroken

KEPT = "nothing was read or written"

# Operators whose results depend on rows of earlier batches.
_STATEFUL = {
    "Aggregate": "it aggregates",
    "AsOfJoin": "it joins with the nearest rows",
    "Deduplicate": "it removes duplicates",
    "DeduplicateWithinWatermark": "it removes duplicates",
    "Distinct": "it removes duplicates",
    "Except": "it subtracts a table, which removes duplicates",
    "Except All": "it subtracts a table row by row",
    "FlatMapGroupsInPandasWithState": "it keeps state by group",
    "FlatMapGroupsWithState": "it keeps state by group",
    "GlobalLimit": "it limits the whole stream",
    "Intersect": "it intersects with a table, which removes duplicates",
    "Intersect All": "it intersects with a table row by row",
    "Offset": "it skips the first rows of the whole stream",
    "Tail": "it takes the last rows of the whole stream",
    "TransformWithState": "it keeps state by key",
    "TransformWithStateInPySpark": "it keeps state by key",
}
# Physical operators that derive their rows from the rows of their own task, in order.
_NARROW = frozenset(
    {
        "AppendColumns", "ArrowEvalPython", "ArrowEvalPythonUDTF", "BatchEvalPython", "BatchEvalPythonUDTF",
        "BroadcastHashJoin", "BroadcastNestedLoopJoin", "CoGroup", "CollectMetrics", "ColumnarToRow",
        "DeserializeToObject", "Expand", "Filter", "FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas",
        "FlatMapGroupsInArrow", "FlatMapGroupsInPandas", "Generate", "InputAdapter", "MapElements", "MapGroups",
        "MapInArrow", "MapInPandas", "MapPartitions", "Project", "RowToColumnar", "Sample", "SerializeFromObject",
        "ShuffledHashJoin", "Sort", "SortMergeJoin", "WholeStageCodegen",
    }
)  # fmt: skip
_MERGED = _NARROW | {"Coalesce"}  # as the engine merges tasks for `sink.partitions`
_AGGREGATES = frozenset({"HashAggregate", "ObjectHashAggregate", "SortAggregate"})
_PARTITIONINGS = frozenset({"HashPartitioning", "ShufflePartitionIdPassThrough", "SinglePartition$"})
# Text that Spark reads as the current date or time when it casts it.
_TIME_IN_WORDS = re.compile(r"'\s*(now|today|tomorrow|yesterday)\b[^']*'", re.IGNORECASE)


class Planning(StrEnum):
    """What must be redone for each batch."""

    KEPT = "kept"  # planned once
    PLANNED = "planned for each batch"  # frame.select("*") for each batch
    BUILT = "built for each batch"  # the user's function is called for each batch


@dataclass(frozen=True)
class Analysis:
    """What must be redone for each batch, why, and how rows get from the reading tasks to the writing ones."""

    planning: Planning
    reasons: tuple[str, ...]
    cut: tuple[str, ...]  # the shuffles between the two, as `ColumnNames` prints them
    partitions: int | None  # tasks that write; None: the reading tasks write
    observes: bool = False  # whether the function counts with observe()

    @property
    def shuffles(self) -> int:
        """The number of shuffles that the rows go through."""
        return len(self.cut)


@plans_read()
def analyse(frame: DataFrame, leaf: DataFrame, most: int | None = None) -> Analysis:
    """Find what must be redone for each batch; raise ConfigInvalid or FunctionInvalid if delivery cannot be exact.

    `leaf` is the frame that mapInArrow returned for reading, and `most` is `sink.partitions`. Nothing is executed.
    """
    execution = frame._jdf.queryExecution()
    source, patterns = Leaf(leaf), Patterns(frame.sparkSession._jvm)
    root = tree(execution.analyzed(), source.ends)
    if root.plan.isStreaming():
        raise _refused(
            "it reads another stream", "read the topics of both with `source`, and tell them apart by kafka.topic"
        )
    path = _logical_path(root, source)
    for above, below in zip(path[1:], path, strict=False):
        _check_operator(above, below)
    changing = _changing(patterns, source)
    for node in path[1:]:
        check(node, changing)
    planned = tree(execution.executedPlan(), source.ends)
    way = _physical_path(planned, source)
    shuffles = [node for node in way[1:] if node.name == "Exchange"]
    if any(node.name in {"SortMergeJoin", "ShuffledHashJoin"} for node in way):
        for above, below in zip(path[1:], path, strict=False):
            _check_join_keys(above, below, changing)
    for node in shuffles:
        _check_shuffle(node, _changing(patterns, source, changing.all))
    reasons = [*_reasons(root, path, patterns)]
    reasons += [(Planning.PLANNED, "it shuffles, and a kept plan would deliver the first batch's rows")] * bool(
        shuffles
    )
    order = list(Planning)
    cut, partitions = _cut(shuffles, root)
    check_merging(planned, source.ends, partitions, most)
    return Analysis(
        planning=max((level for level, _ in reasons), key=order.index, default=Planning.KEPT),
        reasons=tuple(dict.fromkeys(why for _, why in reasons)),
        cut=cut,
        partitions=partitions,
        observes=any(node.name == "CollectMetrics" for node in root),
    )


def planned_cut(frame: DataFrame, leaf: DataFrame) -> tuple[tuple[str, ...], int | None]:
    """Return `cut` and `partitions` of the analysis for a frame as it will run; its last step may be a coalesce."""
    source = Leaf(leaf)
    execution = frame._jdf.queryExecution()
    root = tree(execution.executedPlan(), source.ends)
    way = _physical_path(root, source, _MERGED)[1:]
    cut, partitions = _cut([node for node in way if node.name == "Exchange"], tree(execution.analyzed(), source.ends))
    most = next((node.plan.numPartitions() for node in way if node.name == "Coalesce"), None)
    check_merging(root, source.ends, partitions, most)
    return cut, partitions


def _cut(shuffles: list[Node], analysed: Node) -> tuple[tuple[str, ...], int | None]:
    if not shuffles:
        return (), None
    partitions = shuffles[-1].plan.outputPartitioning().numPartitions()
    return tuple(map(ColumnNames(analysed).printed, shuffles)), partitions


class Leaf:
    """Recognises the driver's leaf in any plan: Spark keeps the id of a Python function in every copy."""

    def __init__(self, leaf: DataFrame) -> None:
        plan = leaf._jdf.queryExecution().analyzed()
        if plan.nodeName() == "Project":  # unread columns are null
            plan = plan.child()
        if plan.nodeName() != "MapInArrow":
            raise InvariantBroken(f"the reading frame is {plan.nodeName()}, not MapInArrow")
        self._id = plan.functionExpr().resultId()

    def ends(self, plan: Any, name: str) -> bool:
        """Return whether this is the leaf, in a logical or a physical plan."""
        if name != "MapInArrow":
            return False
        physical = plan.getClass().getSimpleName() == "MapInArrowExec"
        function = plan.func() if physical else plan.functionExpr()
        return bool(function.resultId().equals(self._id))

    def among(self, node: Node) -> int:
        """Count how many times a plan reads the records, subqueries included."""
        return sum(self.ends(each.plan, each.name) for each in node)


# -- what the user asked for -----------------------------------------------------------------------


def _logical_path(root: Node, leaf: Leaf) -> list[Node]:
    """Return the operators between the leaf and the result, the leaf first."""
    if not leaf.among(root):
        raise FunctionInvalid(
            "the function returned a DataFrame that does not come from the records",
            kept=KEPT,
            then="return one that is made from the function's argument",
        )
    path, node = [root], root
    while not leaf.ends(node.plan, node.name):
        sides = [each for each in node.children if leaf.among(each)]
        if len(sides) != 1 or any(leaf.among(each) for each in node.subqueries):
            how = {"Join": "it joins the records with themselves", "Union": "it unions the records with themselves"}
            raise _refused(
                f"{how.get(node.name, 'it uses the records in a subquery')}, so each would be read more than once",
                "use each record once: F.when(…) decides per row, and explode(array(…)) turns one row into several",
            )
        node = sides[0]
        path.append(node)
    return path[::-1]


def _check_operator(node: Node, below: Node) -> None:
    """Refuse an operator that depends on other batches, or that outputs rows not derived from a record."""
    name = node.name
    if name in _STATEFUL:
        raise _stateful(_STATEFUL[name])
    if name == "Window":
        raise _refused(
            "a window function looks at other rows of the batch, and batch boundaries are arbitrary",
            "aggregate over event time with a checkpoint folder; Structured Streaming refuses such windows too",
        )
    if name == "Union" and len(node.children) > 1:
        raise _refused(
            "it unions the records with another table, whose rows would be output with each batch",
            "join with the table instead",
        )
    if name == "Repartition" and not node.plan.shuffle():
        raise _refused("coalesce() merges several reading tasks into one", "use sink.partitions for fewer transactions")
    if name in {"Join", "LateralJoin"}:
        side = 0 if node.children[0] is below else 1
        if join_type(node) not in JOINS[side]:
            raise _refused(
                f"a {node.plan.joinType().sql().lower()} join with the records on the {('left', 'right')[side]} "
                "outputs rows of the other table, and would do so with each batch",
                "use a join that keeps the records' side",
            )


def _check_join_keys(node: Node, below: Node, changing: Doubts) -> None:
    """Refuse a join that deals the records out by a key that may change."""
    if node.name != "Join" or node.plan.condition().isEmpty():
        return
    mine, doubtful = set(below.outputs), changing.of(below)
    for key in equated(node.plan.condition().get()):
        used = set(references(key))
        why = changing.why(key, doubtful) if used and used <= mine else None
        if why:
            raise unrepeatable(f"the join by {key.sql()} depends on {why}")


# -- what Spark made of it -------------------------------------------------------------------------


def _physical_path(root: Node, leaf: Leaf, known: frozenset[str] = _NARROW) -> list[Node]:
    """Return the physical operators between the leaf and the result; refuse any not known to be repeatable."""
    if root.name.startswith("AdaptiveSparkPlan"):
        raise InvariantBroken("Spark's adaptive execution is on, which cuts each batch by its size")
    if leaf.among(root) != 1:
        raise _unread(root, leaf)
    path, node = [root], root
    while not leaf.ends(node.plan, node.name):
        node = next(each for each in node.children if leaf.among(each))
        path.append(node)
    path.reverse()
    for node in path[1:]:
        name = node.name.partition(" (")[0]
        if name in _AGGREGATES:
            raise _stateful(_STATEFUL["Aggregate"])
        if name == "BroadcastExchange":
            raise _refused(
                "Spark would send the records to the tasks that read the other table",
                "put broadcast(…) around the other table, not around the records",
            )
        if name == "CartesianProduct":
            raise _refused(
                "it joins with a large table without an equality, so each record would be read once for each part of "
                "the table",
                "join by equality, or put broadcast(…) around the table",
            )
        if name == "Exchange":
            kind = node.plan.outputPartitioning().getClass().getSimpleName()
            if kind not in _PARTITIONINGS:
                raise unrepeatable(f"Spark has planned {unnumbered(node.plan.outputPartitioning())}")
        elif name not in known:
            raise unrepeatable(f"Spark has planned {name}, which is not known to be repeatable")
    return path


def _unread(root: Node, leaf: Leaf) -> FunctionInvalid:
    for node in root:
        if node.name == "InMemoryTableScan" and leaf.among(tree(node.plan.relation().cachedPlan(), leaf.ends)):
            return _refused(
                "it caches the records, so each batch would deliver those of the first", "remove cache() and persist()"
            )
    if leaf.among(root):
        return _refused("Spark has planned to read the records more than once", "use each record once")
    return _refused("whatever the records hold, no row comes out, so Spark would not read them", "correct the filter")


def _check_shuffle(node: Node, doubts: Doubts) -> None:
    """Refuse a shuffle whose key, as the optimizer made it, may change."""
    below = doubts.of(node.children[0])
    partitioning = node.plan.outputPartitioning()
    keyed = partitioning.getClass().getSimpleName() != "SinglePartition$"
    for key in items(partitioning.children()) if keyed else ():
        why = doubts.why(key, below)
        if why:
            raise unrepeatable(f"the shuffle by {key.sql()} depends on {why}")


# -- what a kept plan would freeze -----------------------------------------------------------------


def _reasons(root: Node, path: list[Node], patterns: Patterns) -> Iterator[tuple[Planning, str]]:
    """Yield the reasons why a plan cannot be kept, each with what must be redone."""
    for node in root:
        if node.name == "Sample":
            yield Planning.BUILT, "sample() draws different rows for each batch"
        if not node.children and node is not path[0] and node.name not in CONSTANT:
            yield Planning.PLANNED, f"it uses another table ({described(node)})"
        current, seeded = (node.plan.containsPattern(each) for each in (patterns.current, patterns.seeded))
        for expression in node.expressions:
            for each in clocks(expression, patterns) if current else ():
                yield Planning.PLANNED, f"it reads the current time ({called(each)})"
            for each in marked(expression, patterns.seeded, patterns) if seeded else ():
                yield Planning.BUILT, f"{called(each)} draws new values for each batch"
            words = _TIME_IN_WORDS.search(expression.sql())
            if words:
                yield Planning.PLANNED, f"it may read the current time ({words[0]})"


def _changing(patterns: Patterns, leaf: Leaf, known: dict[int, str] | None = None) -> Doubts:
    def origin(node: Node) -> str | None:
        return None if leaf.ends(node.plan, node.name) else other_table(node)

    return Doubts(patterns, origin, clock=True, known=known)


# -- errors ----------------------------------------------------------------------------------------


def _stateful(reason: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"the pipeline is stateful ({reason}) and `checkpoint: ledger` holds no state",
        kept=KEPT,
        then="set checkpoint to a folder that outlives the driver, for example checkpoint: state/ or s3a://bucket/state",
    )


def _refused(why: str, then: str) -> FunctionInvalid:
    return FunctionInvalid(f"the function's result cannot be delivered exactly once: {why}", kept=KEPT, then=then)
