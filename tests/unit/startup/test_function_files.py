"""The files of functions in one session: which are shipped, and which are refused before Spark gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tailrace.config import Pipeline
from tailrace.errors import FunctionMissing
from tailrace.stages.process import Function, apply
from tailrace.startup.function_files import ship
from tailrace.startup.run import assemble

TEXT = """
from pyspark.sql import functions as F

def marked(frame):
    return frame.select(F.udf(lambda value: value + {more!r}, "binary")("value").alias("value"))
"""


def shipped(spark: SparkSession, folder: Path, name: str, more: bytes) -> None:
    """Write a function's file into a folder, and load and ship it as a run does."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(TEXT.format(more=more))
    process = {"function": f"{name}.py:marked"}
    sections = {"pipeline": "p", "source": {"topics": ["in"]}, "process": process, "sink": {"topic": "out"}}
    assemble(spark, Pipeline.model_validate(sections), folder)


UDFS = """
import pandas as pd
import pyarrow as pa
import tailrace_test_beside as beside
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

VERSION = {version!r}
BULK = b"x" * 2_000_000

def version_of(value):
    return VERSION

def batches(given):
    for each in given:
        yield pa.RecordBatch.from_pydict({{"version": [VERSION] * each.num_rows}})

def group(given):
    return pd.DataFrame({{"version": [VERSION]}})

@F.udf(StringType())
def decorated(value):
    return VERSION

def named(frame):
    return frame.select(F.udf(version_of, StringType())("id"))

def in_arrow(frame):
    return frame.mapInArrow(batches, "version string")

def by_group(frame):
    return frame.groupBy("id").applyInPandas(group, "version string")

def in_a_subquery(frame):
    frame.sparkSession.udf.register("tailrace_test_version", version_of)
    return frame.sparkSession.sql("SELECT (SELECT tailrace_test_version(1)) FROM {{frame}}", frame=frame)

def large(frame):
    return frame.select(F.udf(lambda value: version_of(BULK), StringType())("id"))

def columns(frame):
    return frame.select(F.lit(VERSION))

def in_the_function(frame):
    return frame.select(F.udf(lambda value: VERSION, StringType())("id"))

def with_a_decorator(frame):
    return frame.select(decorated("id"))

def with_a_module(frame):
    return frame.select(F.udf(lambda value: beside.version_of(value), StringType())("id"))
"""
BESIDE = """
def version_of(value):
    return {version!r}
"""


def write(folder: Path, name: str, version: str, beside: str = "") -> None:
    """Write a function's file, and the module next to it that it imports."""
    (folder / f"{name}.py").write_text(UDFS.replace("tailrace_test_beside", f"{name}_beside").format(version=version))
    (folder / f"{name}_beside.py").write_text(BESIDE.format(version=beside or version))


def result(spark: SparkSession, folder: Path, name: str, function: str, frame: DataFrame | None = None) -> object:
    """Assemble a pipeline as a run does, and return what the workers make of its function."""
    process = {"function": f"{name}.py:{function}"}
    sections = {"pipeline": "p", "source": {"topics": ["in"]}, "process": process, "sink": {"topic": "out"}}
    assembly = assemble(spark, Pipeline.model_validate(sections), folder)
    assert assembly.function is not None
    return apply(assembly.function, spark.range(1) if frame is None else frame, {}).collect()[0][0]


def works(spark: SparkSession) -> bool:
    """Return whether jobs of the session succeed, whose tasks fetch all of its files."""
    return spark.sparkContext.parallelize(range(4), 2).map(lambda number: number + 1).sum() == 10


def test_second_function_file_of_a_name_is_refused_before_the_session_is_spoilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would hold both, and fail each later job at the second one."""
    shipped(spark, tmp_path / "a a", "tailrace_test_second_file", b"a")
    held = spark.sparkContext.listFiles
    with pytest.raises(FunctionMissing, match=r"tailrace_test_second_file\.py") as caught:
        shipped(spark, tmp_path / "b", "tailrace_test_second_file", b"b")
    assert caught.value.then == "rename the file, or use another Spark session"
    assert spark.sparkContext.listFiles == held
    assert works(spark)


def test_function_file_that_was_edited_or_copied_is_shipped(spark: SparkSession, tmp_path: Path) -> None:
    """The same path is no second file, and a file with the text that Spark has is none to it."""
    shipped(spark, tmp_path / "a a", "tailrace_test_edited", b"a")
    shipped(spark, tmp_path / "b", "tailrace_test_edited", b"a")
    assert works(spark)  # from now on Spark does not look at these files again
    shipped(spark, tmp_path / "a a", "tailrace_test_edited", b"b")
    shipped(spark, tmp_path / "c", "tailrace_test_edited", b"a")
    assert works(spark)


def test_second_function_file_that_a_cluster_refuses_is_named(tmp_path: Path) -> None:
    """There Spark serves files by their names, and checks their paths itself."""

    class Cluster:
        listFiles = ("spark://driver:7078/files/mine.py",)  # noqa: N815 - Spark's name

        def addPyFile(self, path: str) -> None:  # noqa: N802 - Spark's name
            raise IllegalArgumentException("requirement failed: mine.py was already registered with a different path")

    function = Function(print, "mine.py:f", (tmp_path / "mine.py",))
    with pytest.raises(FunctionMissing, match=r"another file of the name mine\.py"):
        ship(cast("Any", Cluster()), function)


@pytest.mark.parametrize("function", ["named", "in_arrow", "by_group", "in_a_subquery", "large"])
def test_edited_function_that_workers_import_from_the_earlier_text_is_refused(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    """Spark keeps the file that it was given, so the workers would answer with the earlier code."""
    name = f"tailrace_test_stale_{function}"
    write(tmp_path, name, "old")
    assert result(spark, tmp_path, name, function) == "old"
    write(tmp_path, name, "edited")
    with pytest.raises(FunctionMissing, match=rf"{name}\.py") as caught:
        result(spark, tmp_path, name, function)
    assert caught.value.then == "use another Spark session: spark.stop(), then start one"
    assert works(spark)
    write(tmp_path, name, "old")
    assert result(spark, tmp_path, name, function) == "old"


@pytest.mark.parametrize("function", ["columns", "in_the_function", "with_a_decorator"])
def test_edited_function_that_is_sent_with_its_code_gives_the_new_result(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    """The workers import nothing of the file, and a notebook may edit it and run it again."""
    name = f"tailrace_test_fresh_{function}"
    for version in ("old", "edited", "edited again"):
        write(tmp_path, name, version)
        assert result(spark, tmp_path, name, function) == version
        assert works(spark)


@pytest.mark.parametrize("function", ["with_a_module", "indirect"])
def test_edited_module_next_to_the_function_is_refused_where_workers_import_it(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    """The function's own file has not changed; functions that do not need the module still run."""
    name = f"tailrace_test_next_to_{function}"
    write(tmp_path, name, "old")
    text = (tmp_path / f"{name}.py").read_text()
    indirect = "\ndef call(value):\n    return beside.version_of(value)\n\n"
    indirect += "def indirect(frame):\n    return frame.select(F.udf(call, StringType())('id'))\n"
    (tmp_path / f"{name}.py").write_text(text + indirect)
    assert result(spark, tmp_path, name, function) == "old"
    (tmp_path / f"{name}_beside.py").write_text(BESIDE.format(version="edited"))
    with pytest.raises(FunctionMissing, match=rf"{name}_beside\.py"):
        result(spark, tmp_path, name, function)
    assert result(spark, tmp_path, name, "with_a_decorator") == "old"


def test_edited_file_does_not_matter_to_functions_of_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """The module next to the function's file has not changed, and does not import that file."""
    name = "tailrace_test_other_part"
    write(tmp_path, name, "old")
    assert result(spark, tmp_path, name, "with_a_module") == "old"
    write(tmp_path, name, "edited", beside="old")
    assert result(spark, tmp_path, name, "with_a_module") == "old"


def test_edited_file_does_not_matter_to_functions_before_the_pipelines_own(spark: SparkSession, tmp_path: Path) -> None:
    """Tailrace's own functions may hold the name of a topic that the file has too."""
    name = "tailrace_test_topic"
    before = spark.range(1).select(F.udf(lambda value: name and 0, "long")("id").alias("id"))
    for version in ("old", "edited"):
        write(tmp_path, name, version)
        assert result(spark, tmp_path, name, "columns", before) == version
