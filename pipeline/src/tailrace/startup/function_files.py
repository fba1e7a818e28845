"""The files of a pipeline's function, on their way to Spark's workers.

A session keeps each file that it was given, under its name alone, until it ends. A second file of that name makes Spark
fail every later job of the session, so it is refused before Spark gets it. The same file again is no second one, even
if it was edited: Spark, whose tasks have fetched it, ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException

from tailrace.errors import FunctionMissing
from tailrace.stages.process import KEPT, Function


def ship(context: SparkContext, function: Function) -> None:
    """Give the function's files to the workers; refuse if the session has another file with one of their names."""
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
