"""The files of functions in one session: which are shipped, and which are refused before Spark gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.errors import FunctionMissing
from tailrace.stages.process import Function
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


def works(spark: SparkSession) -> bool:
    """Return whether jobs of the session succeed, whose tasks fetch all of its files."""
    return spark.sparkContext.parallelize(range(4), 2).map(lambda number: number + 1).sum() == 10


def test_second_function_file_of_a_name_is_refused_before_the_session_is_spoilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would hold both, and fail each later job at the second one."""
    shipped(spark, tmp_path / "a a", "tailrace_test_twice", b"a")
    held = spark.sparkContext.listFiles
    with pytest.raises(FunctionMissing, match=r"tailrace_test_twice\.py") as caught:
        shipped(spark, tmp_path / "b", "tailrace_test_twice", b"b")
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
