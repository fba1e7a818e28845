"""Table sizes, by which Spark chooses between a broadcast and a shuffle, and with it how a batch is cut.

Spark learns the size of a cached table when its cache is filled, so caches are filled before a frame is planned. Files
may cross the threshold for broadcasts between two plans; another threshold then gives the plan of before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tailrace.driver.catalyst import tree
from tailrace.driver.frame_analysis import Leaf, planned_cut

THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
OTHERS = ("-1", str(8 << 30))  # broadcast no table for its size; broadcast each that Spark can
_CACHED = "InMemoryRelation"
_IDS = re.compile(r"#\d+L?|plan_id=\d+")


def fill_caches(frame: DataFrame, leaf: DataFrame) -> None:
    """Fill the caches of the tables that a frame uses; one of the records themselves is left for the analysis."""
    records = Leaf(leaf)
    fill_tables(
        frame._jdf.queryExecution().withCachedData(), lambda cached: bool(records.among(tree(cached, records.ends)))
    )


def fill_tables(plan: Any, of_records: Callable[[Any], bool]) -> None:
    """Fill the caches that a logical plan reads, unless `of_records` says that the cached plan reads the records."""
    for node in tree(plan):
        if node.name != _CACHED:
            continue
        cache = node.plan.cacheBuilder()
        if not (cache.isCachedColumnBuffersLoaded() or of_records(cache.cachedPlan())):
            cache.cachedColumnBuffers().count()


def fill_caches_of_stream(rows: DataFrame) -> None:
    """Fill the caches of the tables that a stream uses; Spark plans a stream with its caches only as a query."""
    caches = rows.sparkSession._jsparkSession.sharedState().cacheManager()
    every = getattr(caches, "useCachedData$default$2")()  # as Scala names the default of an argument
    fill_tables(caches.useCachedData(rows._jdf.queryExecution().normalized(), every), lambda cached: False)


class PlannedCut:
    """How a frame is cut each time that it is planned.

    Reading a plan's operators takes some ten milliseconds, and its text one. Plans of one frame that have the same text
    are the same plan.
    """

    def __init__(self, leaf: DataFrame) -> None:
        self._leaf = leaf
        self._known: tuple[str, tuple[tuple[str, ...], int | None]] | None = None

    def of(self, frame: DataFrame) -> tuple[tuple[str, ...], int | None]:
        """Plan the frame and return its cut; see `planned_cut`."""
        text = _IDS.sub("", frame._jdf.queryExecution().executedPlan().toString())
        if self._known is None or self._known[0] != text:
            self._known = text, planned_cut(frame, self._leaf)
        return self._known[1]


@contextlib.contextmanager
def broadcasting(spark: SparkSession, threshold: str | None) -> Iterator[None]:
    """Set the threshold for what is planned inside; None keeps the session's own, which the function may have set."""
    if threshold is None:
        yield
        return
    before = spark.conf.get(THRESHOLD)
    spark.conf.set(THRESHOLD, threshold)
    try:
        yield
    finally:
        spark.conf.set(THRESHOLD, str(before))
