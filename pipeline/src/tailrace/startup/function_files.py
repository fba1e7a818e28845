"""The files of a pipeline's function, on their way to Spark's workers.

A session keeps each file that it was given, under its name alone, until it ends. A second file of that name makes Spark
fail every later job of the session, so it is refused before Spark gets it.

The same file again is no second one, even if it was edited: Spark, whose tasks have fetched it, ignores it. The workers
keep the earlier text, so functions that they would import from it are refused. Whatever is sent with its code, and
expressions of columns, do what the edited file says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tailrace.driver.python_functions import imported
from tailrace.errors import FunctionMissing
from tailrace.stages.module_sources import sources
from tailrace.stages.process import KEPT, Function


def ship(context: SparkContext, function: Function) -> Function:
    """Give the function's files to the workers; refuse if the session has another file with one of their names.

    Return the function, which refuses what the workers would import from earlier texts of its files.
    """
    held = tuple(context.listFiles)
    clashes = sorted(file.name for file in function.files if _clashes(file, held))
    if clashes:
        raise _refused(function, ", ".join(clashes))
    for file in function.files:
        try:
            context.addPyFile(str(file))
        except (Py4JError, PySparkException) as error:  # on a cluster, Spark itself refuses another path
            if "different path" in str(error):
                raise _refused(function, file.name) from error
            raise
    edited = _edited(function, held)
    return _checked(function, edited) if edited else function


def _edited(function: Function, held: Iterable[str]) -> frozenset[Path]:
    """Return the files next to the function whose earlier text the session holds."""
    if not function.files:
        return frozenset()
    home, copies = function.files[0].parent, Path(SparkFiles.getRootDirectory())
    names = {Path(unquote(urlsplit(each).path)).name for each in held}
    both = [(home / name, copies / name) for name in names if name.endswith(".py")]
    return frozenset(
        file for file, copy in both if file.is_file() and copy.is_file() and file.read_bytes() != copy.read_bytes()
    )


def _checked(function: Function, edited: frozenset[Path]) -> Function:
    """Return the function, which refuses what the workers would import from the earlier texts of `edited` files."""
    files = edited.union(function.files)
    modules = frozenset(file.stem for file in files if edited.intersection(sources(f"{file.name}:", file.parent)))

    def check(frame: DataFrame, made: DataFrame) -> None:
        if imported(frame, made, modules):
            names = ", ".join(sorted(each.name for each in edited))
            raise FunctionMissing(
                f"function {function.name!r}: {names} was edited after the Spark session got it, and the workers would "
                "run the earlier text",
                kept=KEPT,
                then="use another Spark session: spark.stop(), then start one",
            )

    return replace(function, check=check)


def _clashes(file: Path, held: Iterable[str]) -> bool:
    """Return whether a local session has another file of this name; one on a cluster does not show the paths."""
    places = [Path(unquote(each.path)) for each in map(urlsplit, held) if each.scheme == "file"]
    if file in places or file.name not in {each.name for each in places}:
        return False
    # Spark compares with its copy, since the other file may have been edited.
    copy = Path(SparkFiles.getRootDirectory(), file.name)
    return not copy.is_file() or copy.read_bytes() != file.read_bytes()


def _refused(function: Function, names: str) -> FunctionMissing:
    return FunctionMissing(
        f"function {function.name!r}: the Spark session has another file of the name {names} from an earlier pipeline, "
        "which the workers would import instead",
        kept=KEPT,
        then="rename the file, or use another Spark session",
    )
