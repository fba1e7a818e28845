"""The settings of a Spark session that may decide what an expression gives, for a batch behind a shuffle.

There they also decide which sink partition gets a row: `date_format` as a key gives another day in another time zone.
They are read from the session itself, which may have been passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tailrace.config import SECRET_OPTION

# Their defaults depend on the machine, so they are compared even if nobody has set them.
TIME_ZONE = "spark.sql.session.timeZone"
ALWAYS = (TIME_ZONE, "spark.sql.ansi.enabled")
# What decides how fast a batch is, what is shown or logged, and where tables are; the partitions of shuffles are
# compared with the plan's. Whatever is not listed counts as deciding: a refused setting can be set back, but a record
# that has moved between sink partitions is lost.
_OTHERWISE = tuple(
    f"spark.sql.{name}"
    for name in (
        "adaptive", "artifact", "autoBroadcastJoinThreshold", "avro.compression", "broadcastExchange",
        "broadcastTimeout", "cache", "catalog", "catalogImplementation", "cbo", "classic", "cli", "codegen", "connect",
        "debug", "defaultCacheStorageLevel", "defaultCatalog", "error", "event", "execution.arrow",
        "execution.interruptOnCancel", "execution.pandas.udf.buffer", "execution.pyspark.udf", "execution.python.udf",
        "execution.pythonUDF.arrow.concurrency", "extendedExplainProviders", "files.maxPartitionBytes",
        "files.maxPartitionNum", "files.minPartitionNum", "files.openCostInBytes", "hive.metastore",
        "inMemoryColumnarStorage", "join", "leafNodeDefaultParallelism", "maven", "maxBroadcastTableSize",
        "maxMetadataStringLength", "maxPlanStringLength", "maxSinglePartitionBytes", "metadataCacheTTLSeconds",
        "optimizer", "orc.compression", "parquet.compression", "planner", "pyspark.dataSource.profiler",
        "pyspark.jvmStacktrace", "pyspark.plotting", "pyspark.udf.profiler", "pyspark.worker.logging",
        "queryExecutionListeners", "redaction", "repl", "session.localRelationCacheThreshold", "shuffle",
        "shuffledHashJoinFactor", "shuffleDependency", "sources.bucketing", "sources.parallelPartitionDiscovery",
        "sources.v2.bucketing", "stackTracesInDataFrameContext", "statistics", "streaming", "thriftServer",
        "thriftserver", "ui", "warehouse", "window",
    )
)  # fmt: skip

_TO, _BETWEEN = " -> ", "\0"  # how Scala writes a pair, and what no setting contains


def decides(name: str) -> bool:
    """Return whether a setting may decide what an expression gives. A secret does not, and is not to be stored."""
    if not name.startswith("spark.sql.") or SECRET_OPTION.search(name):
        return False
    return not any(name == each or name.startswith(f"{each}.") for each in _OTHERWISE)


def deciding(given: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that may decide, and that are not what they would be if nobody had set them."""
    return {
        name: value
        for name, value in sorted(given.items())
        if decides(name) and (name in ALWAYS or defaults.get(name) != value)
    }


def of_session(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session that may decide."""
    jvm: Any = spark._jvm
    held = spark._jsparkSession.sessionState().conf()
    # One call; PySpark's getAll takes two for each setting of the session, and of its context.
    pairs = (each.partition(_TO) for each in held.getAllConfs().mkString(_BETWEEN).split(_BETWEEN))
    given = {name: value for name, _, value in pairs if decides(name)}
    given |= {name: str(held.getConfString(name)) for name in ALWAYS}
    given[TIME_ZONE] = _zone(jvm, given[TIME_ZONE])
    plain = jvm.org.apache.spark.sql.internal.SQLConf()
    return deciding(given, {name: _default(plain, name) for name in given if name not in ALWAYS})


def _zone(jvm: Any, name: str) -> str:
    """Return one name for all zones that are UTC: machines and images have it as Etc/UTC, GMT or UTC."""
    try:
        return "UTC" if jvm.java.time.ZoneId.of(name).normalized().getId() == "Z" else name
    except Py4JError:  # Spark takes forms that Java does not
        return name


def _default(plain: Any, name: str) -> str:
    try:
        return str(plain.getConfString(name))
    except Py4JError:  # it has no default, or Spark does not know it
        return ""
