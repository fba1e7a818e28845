"""Process: the user's function from DataFrame to DataFrame, and the conditions that a record must meet.

Mistakes in them are reported before the first record is read, with the unknown name and the nearest known one, or with
the line of the user's file that raised.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StructType

from tailrace.config import Rule
from tailrace.errors import ConfigInvalid, FunctionInvalid, FunctionMissing, TailraceError
from tailrace.stages.imported_texts import AGAIN, ImportedTexts, elsewhere
from tailrace.stages.module_sources import sources
from tailrace.stages.rows import BROKEN, DETAIL, KAFKA, REASON, STAGE
from tailrace.stages.rules import UNDECODED
from tailrace.stages.spark_text import first_line, quoted

KEPT = "nothing was read or written"
NAME = "process"
_FAILED = "_failed"

# Names of modules loaded from users' files, unloaded so that another pipeline's file can have the same name.
_loaded: set[str] = set()
_texts = ImportedTexts(reloads=True)


@dataclass(frozen=True)
class Function:
    """The user's function, and the files that Spark's workers need to run it (SparkContext.addPyFile)."""

    call: Callable[..., object]
    name: str
    files: tuple[Path, ...]
    check: Callable[[DataFrame, DataFrame], None] | None = None  # of its input and result, where the session needs it


def load(reference: str, folder: Path) -> Function:
    """Load the function `file.py:name`, relative to `folder`, or `package.module:name`."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise _missing(reference, "it is not of the form file.py:name or package.module:name", "use one of these forms")
    path = (folder / where).resolve() if where.endswith(".py") else None
    home = folder.resolve() if path is None else path.parent
    forget()
    own = sources(reference, folder)
    stale = _texts.edited(own) or (elsewhere(where, own) if path is None else "")
    if stale:
        raise _missing(reference, stale, AGAIN)
    before = set(sys.modules)
    try:
        with _importable(home):
            module = _module(reference, where, home) if path is None else _file(reference, path)
    finally:
        files = sorted(_files(home, set(sys.modules) - before))
        _texts.remember(own)
    stale = elsewhere(where, own) if path is None else ""
    if stale:  # by what the package has imported only now
        raise _missing(reference, stale, AGAIN)
    found = getattr(module, name, None)
    if not callable(found):
        choices = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        near = difflib.get_close_matches(name, choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"define {name} there"
        what = "is not callable" if hasattr(module, name) else "does not exist"
        raise _missing(reference, f"{name!r} {what} in {where}", hint)
    return Function(found, reference, tuple(files))


def accepts(call: Callable[..., object], reference: str, arguments: Mapping[str, Any], what: str) -> None:
    """Refuse a function that cannot be called with its input, which is `what`, and these arguments."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # a callable that was not written in Python has none
        return
    try:
        signature.bind(None, **arguments)
    except TypeError as error:
        raise FunctionInvalid(
            f"{reference} does not take {what} and process.arguments: {error}",
            kept=KEPT,
            then="fix the function or process.arguments",
        ) from None


def forget(names: Collection[str] = ()) -> None:
    """Unload the modules of users' files, so that others can have their names; `names` will be loaded next."""
    for known in _loaded | set(names):
        sys.modules.pop(known, None)
    _loaded.clear()
    _loaded.update(names)


@contextmanager
def _importable(home: Path) -> Iterator[None]:
    sys.path.insert(0, str(home))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(home))


def _file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.py")], 1)
        raise _missing(reference, f"{path} does not exist", f"did you mean {near[0]!r}?" if near else "create the file")
    other = _other(path)
    if other:
        raise _missing(
            reference,
            f"{path.name} has the same name as another module ({other}), which workers would import instead",
            "rename the file",
        )
    return _imported(reference, path.stem, path.parent)


def _other(path: Path) -> str:
    """Return where another module of this file's name is, or ""."""
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        return getattr(loaded, "__file__", None) or repr(loaded)
    spec = importlib.util.find_spec(path.stem)
    if spec is None or (spec.origin is not None and Path(spec.origin).resolve() == path):
        return ""
    return spec.origin or repr(spec)


def _module(reference: str, where: str, home: Path) -> ModuleType:
    try:
        known = importlib.util.find_spec(where) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise _missing(reference, f"there is no module {where!r}", "install it, or name a file as file.py:name")
    return _imported(reference, where, home)


def _imported(reference: str, where: str, home: Path) -> ModuleType:
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        sys.modules.pop(where, None)
        raise _missing(
            reference, f"it does not load: {_described(error, home)}", "fix the file, or install what it imports"
        ) from error


def _files(home: Path, names: set[str]) -> Iterator[Path]:
    """Yield the user's own top-level modules; packages must be installed where the workers run."""
    for name in names:
        origin = getattr(sys.modules.get(name), "__file__", None)
        if origin is not None and Path(origin).resolve().parent == home and "." not in name:
            _loaded.add(name)
            yield Path(origin).resolve()


def apply(function: Function, frame: DataFrame, arguments: Mapping[str, Any]) -> DataFrame:
    """Call the function on the frame and return its DataFrame."""
    try:
        result = function.call(frame, **arguments)
    except TailraceError:
        raise
    except Exception as error:  # the user's code may raise anything
        home = next((each.parent for each in function.files), None)
        raise FunctionInvalid(
            f"{function.name} raised {_described(error, home)}", kept=KEPT, then="fix the function"
        ) from error
    if not isinstance(result, DataFrame):
        raise FunctionInvalid(
            f"{function.name} returned {type(result).__name__}, not a DataFrame", kept=KEPT, then="return a DataFrame"
        )
    if result.isStreaming != frame.isStreaming:
        raise FunctionInvalid(
            f"{function.name} returned a DataFrame that does not come from the records",
            kept=KEPT,
            then="return one that is made from the function's argument",
        )
    if function.check is not None:
        function.check(frame, result)
    return result


def _described(error: BaseException, home: Path | None) -> str:
    """Return the error's message, and the last line of the user's code that led to it."""
    text = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{reason} ({Path(error.filename).name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if home is not None and Path(each.filename).resolve().is_relative_to(home)]
    return f"{reason} ({Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line})" if own else reason


def validate(frame: DataFrame, rules: Mapping[str, Rule]) -> DataFrame:
    """Apply the rules to each decoded row; null breaks a rule.

    The first rule that rejects a row gives it its name as the reason; later ones are not asked, and may rely on it. The
    column BROKEN has the numbers of all rules that the row breaks.
    """
    if not rules:
        return frame
    # A row that is already rejected has no fields that a condition could check.
    failed = F.when(F.col(REASON).isNotNull(), None)
    warned = []
    for number, (name, rule) in enumerate(rules.items()):
        try:
            met = F.expr(rule.condition)
            kind = frame.withColumn(_FAILED, met).schema[_FAILED].dataType
        except PySparkException as error:
            raise _condition(name, rule.condition, first_line(error)) from None
        if not isinstance(kind, BooleanType):
            raise _condition(name, rule.condition, f"it is {kind.simpleString()}, not boolean")
        broken = ~F.coalesce(met, F.lit(False))
        if rule.rejects:
            why = F.struct(
                F.lit(number).alias("rule"), F.lit(name).alias("reason"), F.lit(rule.condition).alias("detail")
            )
            failed = failed.when(broken, why)
        else:
            ended = F.col(REASON).isNotNull() | F.coalesce(F.col(_FAILED)["rule"] < number, F.lit(False))
            warned.append(F.when(ended, None).when(broken, number))
    if not any(rule.rejects for rule in rules.values()):
        failed = F.lit(None).cast("struct<rule: int, reason: string, detail: string>")
    judged = frame.withColumn(_FAILED, failed)
    found = F.when(F.col(_FAILED).isNotNull(), F.array(F.col(_FAILED)["rule"]))
    if warned:
        numbers = F.array_compact(F.array(*warned, F.col(_FAILED)["rule"]))
        found = F.when(F.size(numbers) > 0, numbers)
    return judged.withColumns(
        {
            REASON: F.coalesce(F.col(REASON), F.col(_FAILED)["reason"]),
            DETAIL: F.coalesce(F.col(DETAIL), F.col(_FAILED)["detail"]),
            STAGE: F.when(F.col(_FAILED).isNotNull(), NAME),
            BROKEN: found,
        }
    ).drop(_FAILED)


def broken_rules() -> Column:
    """Return the numbers of the rules that a judged row breaks, or UNDECODED alone; null if it breaks none."""
    undecoded = F.col(REASON).isNotNull() & F.col(BROKEN).isNull()
    return F.when(undecoded, F.array(F.lit(UNDECODED))).otherwise(F.col(BROKEN))


def spread_rows(frame: DataFrame, partitions: int) -> DataFrame:
    """Spread decoded rows over this many tasks, by the records' keys, or by topic and offset if they have none."""
    record = F.col(KAFKA)
    place = F.concat_ws("-", record["topic"], record["partition"], record["offset"]).cast("binary")
    return frame.repartition(partitions, F.coalesce(record["key"], place))


def unchanged(frame: DataFrame) -> DataFrame:
    """Pass each record through with its key, headers and timestamp, for a pipeline without a function."""
    names = [name for name in frame.columns if name != KAFKA]
    record, value = F.col(KAFKA), F.struct(*(F.col(quoted(name)) for name in names))
    if names == ["value"] and not isinstance(frame.schema["value"].dataType, StructType):
        value = F.col("value")
    return frame.select(
        record["key"].alias("key"),
        value.alias("value"),
        record["headers"].alias("headers"),
        record["timestamp"].alias("timestamp"),
        KAFKA,
    )


def _condition(name: str, condition: str, why: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"process.validate: the condition {name!r}, `{condition}`, cannot be evaluated: {why}",
        kept=KEPT,
        then="write it in Spark SQL, over the decoded fields and `kafka`",
    )


def _missing(reference: str, what: str, then: str) -> FunctionMissing:
    return FunctionMissing(f"function {reference!r}: {what}", kept=KEPT, then=then)
