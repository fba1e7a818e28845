"""What `exactly_once` refuses before it writes a batch: rows that a replay would deal out differently.

What the user asked for is checked in the plans that Spark has analysed. How Spark joins tables shows only in what it
executes, and may change from one batch to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tailrace import errors
from tailrace.driver import repeatable
from tailrace.driver.branches import records_of
from tailrace.driver.catalyst import Patterns, tree
from tailrace.spark_stream import executed
from tailrace.spark_stream.analysis import beneath, holds_state, refuse_merging


@dataclass
class CutChecks:
    """The checks of the queries that call one sink, one after the other, and of their batches."""

    _run: str = ""  # of the query that was judged last; a query that is started again may have been edited
    _query: repeatable.Judged | None = None
    _joins: bool = False  # whether the query was judged with joins that shuffle

    @repeatable.plans_read()
    def __call__(self, frame: DataFrame, query: Any) -> None:
        """Refuse a batch; `query` is Spark's object of the query."""
        stream, batch = query.lastExecution(), frame._jdf.queryExecution()
        below, above = tree(stream.executedPlan()), tree(batch.executedPlan())
        patterns, run = Patterns(frame.sparkSession._jvm), query.runId().toString()
        try:
            joins = executed.joined(below)
            if self._query is None or run != self._run or joins > self._joins:
                self._query = repeatable.check_stream(query.logicalPlan(), patterns, clock=False, joins=joins)
                self._run, self._joins = run, joins
            refuse_merging(self._query.root, holds_state)
            joins, number = executed.joined(above), stream.toRdd().id()
            judged = repeatable.check_batch(batch.analyzed(), patterns, number, self._query, joins=joins)
            if beneath(self._query.root, holds_state):
                has = records_of(number)
                refuse_merging(judged.root, lambda node: not node.children and has(node))
            for each in (below, above):
                executed.check_sent(each, number)
            executed.check_keys(below, self._query)
            executed.check_keys(above, judged, number)
        except errors.FunctionInvalid as refused:
            raise errors.FunctionInvalid(
                refused.what.replace("the function's rows", "the query's rows", 1),
                kept="nothing was written",
                then=refused.then.replace("use process.partitions, or ", "use ", 1),
            ) from None
        if executed.sized(below, above):
            raise errors.FunctionInvalid(
                "the query's rows cannot be cut the same way again: spark.sql.adaptive.enabled is true, and adaptive "
                "execution merges and splits the partitions of a shuffle by their sizes",
                kept="nothing was written",
                then="set spark.sql.adaptive.enabled to false in the session before the query starts",
            )
