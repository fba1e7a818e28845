"""What deals out the rows of a stateful pipeline's batches: noted in each plan, and checked when it is new.

Spark may choose other joins for each batch, so the shuffles show only in what it executes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from tailrace.driver.catalyst import tree
from tailrace.driver.column_names import ColumnNames
from tailrace.errors import InvariantBroken
from tailrace.spark_stream import analysis, executed, shuffle_keys, spark_source


class StreamCut:
    """The cuts of one query's batches; `stream` holds the rows that it sends to the sink."""

    def __init__(self, stream: DataFrame) -> None:
        self._stream = stream
        self._joins = False  # whether joins that shuffle were checked
        self._judged: tuple[str, ...] = ()  # the shuffles that were judged last
        self._names: ColumnNames | None = None

    def of(self, rows: DataFrame, query_id: str) -> tuple[str, ...]:
        """Return what deals out the rows of a batch; refuse what a replay could not repeat."""
        query = spark_source.active_query(rows.sparkSession, query_id)
        if query is None:
            raise InvariantBroken(f"Spark has no active query {query_id!r}")
        plan = tree(query.lastExecution().executedPlan())
        executed.check_sent(plan, rows._jdf.queryExecution().toRdd().id())
        if not self._joins and executed.joined(plan):
            analysis.check_joins(self._stream)
            self._joins = True
        if self._names is None:
            self._names = ColumnNames(tree(self._stream._jdf.queryExecution().analyzed()), generated=True)
        shuffles = shuffle_keys.of_stream(plan, self._names)
        if shuffles != self._judged:
            analysis.check_keys(self._stream, plan)
            self._judged = shuffles
        return shuffles
