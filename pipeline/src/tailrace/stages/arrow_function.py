"""The user's function on Arrow batches: its source text is sent to the workers, and each process loads it once.

`process.load` finds and checks the function where the pipeline starts, together with the modules that it imports from
the same folder. The workers may not have those files, so they import the modules from their text.
"""

from __future__ import annotations

import dis
import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

import pyarrow as pa

from tailrace.errors import FunctionFailed, FunctionInvalid, TailraceError
from tailrace.stages.process import accepts, forget, load

Batches = Iterator[pa.RecordBatch]

ABORTED = "the batch's open transactions were aborted; it is read again at the next start"
_LONGEST = 800  # characters of an error that a message shows
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_COMPILED = (".pyx", ".pxi")  # the files of Cython's frames
_NEXT = "__next__"
_RAISE = dis.opmap["RAISE_VARARGS"]
_loading = threading.Lock()


@dataclass(frozen=True)
class Shipped:
    """A function in transit: its reference, and the user's modules as (name, path, text)."""

    reference: str
    module: str
    name: str
    modules: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, reference: str, folder: Path, arguments: Mapping[str, Any]) -> Shipped:
        """Check that the function loads, and capture its sources; raise FunctionMissing or FunctionInvalid if not."""
        with _loading:
            function = load(reference, folder)
        accepts(function.call, reference, arguments, "one iterator")
        where, _, name = reference.rpartition(":")
        module = Path(where).stem if where.endswith(".py") else where
        texts = tuple((path.stem, str(path), path.read_text(encoding="utf-8")) for path in function.files)
        return cls(reference, module, name, texts)

    def load(self) -> Callable[..., object]:
        """Import the function in this process."""
        if not self.modules:
            return _attribute(importlib.import_module(self.module), self.name)
        finder = _Texts({name: (path, text) for name, path, text in self.modules})
        with _loading:
            forget(finder.names)
            sys.meta_path.insert(0, finder)
            try:
                return _attribute(importlib.import_module(self.module), self.name)
            finally:
                sys.meta_path.remove(finder)


class _Texts(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from their text."""

    def __init__(self, texts: Mapping[str, tuple[str, str]]) -> None:
        self._texts = texts
        self.names = frozenset(texts)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        """Find one of the user's modules."""
        if fullname not in self._texts:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self._texts[fullname][0])

    def get_source(self, fullname: str) -> str:
        """Return the module's text, from which tracebacks show lines."""
        return self._texts[fullname][1]

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        path, text = self._texts[module.__name__]
        module.__file__ = path
        exec(compile(text, path, "exec"), module.__dict__)


def _attribute(module: ModuleType, name: str) -> Callable[..., object]:
    found: Callable[..., object] = getattr(module, name)
    return found


class _Watched:
    """The function's input, which remembers an error raised while reading it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.failure: BaseException | None = None

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self.failure is not None:
            raise self.failure
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise


def run(
    call: Callable[..., object], reference: str, files: frozenset[str], batches: Batches, arguments: Mapping[str, Any]
) -> Batches:
    """Yield the function's output batches.

    Errors of the function become FunctionFailed with the line of the user's file. Errors from reading the input are
    raised unchanged, even if the function caught them. Input that the function left unread is read to its end, so that
    every record gets its verdict.
    """
    source = _Watched(batches)
    try:
        made = call(source, **arguments)
    except Exception as error:  # the user's code may raise anything
        raise _failed(error, source, reference, files) from error
    if not isinstance(made, Iterator):
        raise _invalid(reference, f"returned {type(made).__name__}, not an iterator of record batches")
    while True:
        try:
            batch = next(made)
        except StopIteration as end:
            if _ends(end):
                break
            raise _failed(end, source, reference, files) from end
        except Exception as error:  # the user's code may raise anything
            raise _failed(error, source, reference, files) from error
        if not isinstance(batch, pa.RecordBatch):
            raise _invalid(reference, f"yielded {type(batch).__name__}, not a record batch")
        yield batch
    if source.failure is None:
        for _ in source:
            pass
    if source.failure is not None:
        raise source.failure


def _ends(raised: StopIteration) -> bool:
    """Return whether it says that the output ends, and does not come from a function that the iterator calls.

    A generator turns a StopIteration in its body into a RuntimeError. `map`, `filter` and classes pass it on, as if
    their input had ended. So only `__next__` may raise it, be it that of the input, or a `raise` in another method of
    such an iterator.
    """
    steps = list(_steps(raised.__traceback__))
    written = [each for each in steps if not each.tb_frame.f_code.co_filename.endswith(_COMPILED)]
    users = [each for each in written if not each.tb_frame.f_code.co_filename.startswith(_OURS)]
    if not users:
        return True
    last = users[-1]
    if not _is_next(users[0].tb_frame):
        return False
    if steps[-1] is not last or _is_next(last.tb_frame):
        return True
    own = _first_argument(last.tb_frame)
    iterators = [_first_argument(each.tb_frame) for each in users if _is_next(each.tb_frame)]
    explicit = last.tb_frame.f_code.co_code[last.tb_lasti] == _RAISE
    return explicit and own is not None and any(own is each for each in iterators)


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_next(frame: FrameType) -> bool:
    """Return whether a frame runs an iterator's `__next__`, which may be another method's name, or decorated."""
    if frame.f_code.co_name == _NEXT:
        return True
    method = getattr(type(_first_argument(frame)), _NEXT, None)
    while method is not None:
        if getattr(method, "__code__", None) is frame.f_code:
            return True
        method = getattr(method, "__wrapped__", None)
    return False


def _first_argument(frame: FrameType) -> object:
    """Return the first positional argument of a frame's function, as far as it still has it."""
    code = frame.f_code
    if code.co_argcount:
        return frame.f_locals.get(code.co_varnames[0])
    if code.co_flags & inspect.CO_VARARGS:
        return next(iter(frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount]) or ()), None)
    return None


def _invalid(reference: str, what: str) -> FunctionInvalid:
    return FunctionInvalid(f"{reference} {what}", kept=ABORTED, then="yield pyarrow.RecordBatch")


def _failed(error: Exception, source: _Watched, reference: str, files: frozenset[str]) -> BaseException:
    """Return the error to raise for one that the function raised."""
    if source.failure is not None:
        return source.failure
    if isinstance(error, TailraceError):
        return error
    text = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, StopIteration):
        reason = "StopIteration was raised within the function; give next() a default"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_OURS)]
    own = [each for each in frames if each.filename in files] or frames
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name})" if own else ""
    return FunctionFailed(
        f"function {reference!r}: {reason}{place}"[:_LONGEST],
        kept=ABORTED,
        then="fix the function, then start again",
    )
