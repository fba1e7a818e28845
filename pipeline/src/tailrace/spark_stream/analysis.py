"""Static analysis of a stream's Spark plan, before anything runs.

It finds whether the stream keeps state, and whether a replay can partition its batches the same way: a shuffle that
distributes records by their order of arrival, or by a sample, prevents that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from tailrace.config import Pipeline
from tailrace.driver.branches import streams, unions
from tailrace.driver.catalyst import Node, Patterns, tree
from tailrace.driver.repeatable import BY_COLUMNS, ONE_PASS, Judged, check_stream, unrepeatable
from tailrace.errors import ConfigInvalid, FunctionInvalid
from tailrace.spark_stream import executed
from tailrace.spark_stream.storage import on_s3

_CHECKED = "spark.sql.streaming.unsupportedOperationCheck"
_STREAM = "StreamingRelationV2"
_WATERMARK = "EventTimeWatermark"  # which holds no state, but needs a folder
_STATEFUL = {
    "Aggregate": "it aggregates",
    "Distinct": "it removes duplicates",
    "Deduplicate": "it removes duplicates",
    "DeduplicateWithinWatermark": "it removes duplicates",
    _WATERMARK: "it has a watermark",
    "FlatMapGroupsInPandasWithState": "it keeps state by group",
    "FlatMapGroupsWithState": "it keeps state by group",
    "GlobalLimit": "it limits the whole stream",
    "TransformWithState": "it keeps state by key",
    "TransformWithStateInPySpark": "it keeps state by key",
}


def check(rows: DataFrame, checkpoint: str) -> int:
    """Refuse a stream that cannot work; return the number of its shuffles."""
    reason = stateful_reason(rows)
    if reason and checkpoint == "ledger":
        raise ConfigInvalid(
            f"the pipeline is stateful ({reason}) and `checkpoint: ledger` holds no state",
            kept="nothing was read or written",
            then="set checkpoint to a folder that outlives the driver, for example checkpoint: state/ or "
            "s3a://bucket/state",
        )
    return check_shuffles(rows)


def refuse_other_streams(rows: DataFrame, records: DataFrame) -> None:
    """Refuse a function that reads a stream of its own: neither plans nor ledger have a place for its offsets."""
    [own] = _sources(records)
    if any(not each.equals(own) for each in _sources(rows)):
        raise FunctionInvalid(
            "the function reads another stream than the records",
            kept="nothing was read or written",
            then="read the topics of both with `source`, and tell them apart by kafka.topic",
        )


def _sources(rows: DataFrame) -> list[Any]:
    """Return what a plan streams from; each reader has a table of its own, which its copies share."""
    leaves = [each.plan for each in tree(rows._jdf.queryExecution().analyzed()) if not each.children]
    streams = [each for each in leaves if each.isStreaming()]
    return [each.table() if each.nodeName() == _STREAM else each for each in streams]


def refuse_unsupported(rows: DataFrame, pipeline: Pipeline) -> None:
    """Refuse what Spark would refuse when the query starts: by then the driver that worked has been fenced."""
    spark, analysed = rows.sparkSession, rows._jdf.queryExecution().analyzed()
    if pipeline.checkpoint == "ledger" or spark.conf.get(_CHECKED, "true") != "true":
        return
    try:
        _supported(spark._jvm, analysed)
    except CapturedException as error:
        raise FunctionInvalid(
            f"Spark cannot run function {pipeline.process.function!r} as a stream: {_first_line(error)}",
            kept="nothing was read or written",
            then="change the function, or give the stream a watermark if Spark asks for one",
        ) from error
    processor = next((node for node in tree(analysed) if node.name.startswith("TransformWithState")), None)
    if processor is not None and on_s3(pipeline):
        raise FunctionInvalid(
            f"function {pipeline.process.function!r} keeps state by transformWithState, whose files on an object store "
            "cannot be checked after a write that failed",
            kept="nothing was read or written",
            then="use applyInPandasWithState, or a folder on a disk as the checkpoint",
        )


def _supported(jvm: Any, analysed: Any) -> None:
    sql = jvm.org.apache.spark.sql
    sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analysed, sql.streaming.OutputMode.Append())


def _first_line(error: CapturedException) -> str:
    return str(error).partition("\n")[0][:500]


def stateful_reason(rows: DataFrame) -> str | None:
    """Return why the stream needs a store for its state; None for a stateless one."""
    return next(filter(None, map(_reason, tree(rows._jdf.queryExecution().analyzed()))), None)


def _reason(node: Node) -> str | None:
    if node.name in _STATEFUL and node.plan.isStreaming():
        return _STATEFUL[node.name]
    if node.name == "Join" and all(side.plan.isStreaming() for side in node.children):
        return "it joins two streams"
    return None


_SHUFFLES = frozenset(_STATEFUL) - {_WATERMARK} | {
    "AsOfJoin",
    "Except",
    "FlatMapCoGroupsInArrow",
    "FlatMapCoGroupsInPandas",
    "FlatMapGroupsInArrow",
    "FlatMapGroupsInPandas",
    "Intersect",
    "Join",
    "RepartitionByExpression",
    "Sort",
    "Window",
}


def check_shuffles(rows: DataFrame) -> int:
    """Count the shuffles that the stream may have; refuse what a replay could not repeat."""
    root = _checked(rows, joins=False).root
    if any(unions(root, streams)):
        raise unrepeatable(
            "it unions branches of the records, whose order decides which task writes a branch: that of a set, say, is "
            "another one in each process",
            f"{ONE_PASS}, or repartition(n, column) by columns of the records",
        )
    refuse_merging(root, holds_state)
    return sum(node.name in _SHUFFLES for node in root)


def holds_state(node: Node) -> bool:
    """Return whether an operator of a stream keeps state from batch to batch."""
    return node.name != _WATERMARK and _reason(node) is not None


def refuse_merging(root: Node, of_state: Callable[[Node], bool]) -> None:
    """Refuse to merge tasks that have state: Spark goes by the executors that keep it from the last batch.

    In the first batch of a run it knows none of them. An open batch would never fit its plan again.
    """
    for node in root:
        merges = node.name == "Repartition" and not node.plan.shuffle()
        if merges and (tasks := node.plan.numPartitions()) > 1 and beneath(node, of_state):
            raise unrepeatable(
                f"coalesce({tasks}) merges tasks by the executors that keep their state, which a restart forgets",
                f"{BY_COLUMNS}; or coalesce(1)",
            )


def beneath(node: Node, wanted: Callable[[Node], bool]) -> bool:
    """Return whether the tasks of an operator have such rows; those of a shuffle in between have them no more."""
    return wanted(node) or (not _deals(node) and any(beneath(each, wanted) for each in node.children))


def _deals(node: Node) -> bool:
    """Return whether an operator certainly deals its rows out to other tasks; a join may broadcast a table."""
    if node.name == "Repartition":
        return bool(node.plan.shuffle())
    keyed = node.name in _SHUFFLES - {"AsOfJoin", "Join"} and not node.plan.isStreaming()
    return keyed or node.name == "RepartitionByExpression"


def check_joins(rows: DataFrame) -> None:
    """Refuse joins with tables that a replay could not repeat; Spark shuffles for them."""
    _checked(rows, joins=True)


def check_keys(rows: DataFrame, plan: Node) -> None:
    """Refuse shuffles that Spark executes, and that a replay could not repeat."""
    executed.check_keys(plan, _checked(rows, joins=False))


def _checked(rows: DataFrame, *, joins: bool) -> Judged:
    analysed, patterns = rows._jdf.queryExecution().analyzed(), Patterns(rows.sparkSession._jvm)
    return check_stream(analysed, patterns, clock=True, joins=joins)
