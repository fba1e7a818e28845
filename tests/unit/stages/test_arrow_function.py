"""Where the output of an Arrow function ends, and where a StopIteration is an error of the function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import FunctionFailed
from tailrace.stages.arrow_function import run

COUNT = 4
KNOWN = range(2)  # of the batches, which are numbered

Batches = Iterator[pa.RecordBatch]


def batches() -> Batches:
    """Yield batches of one row, numbered."""
    for number in range(COUNT):
        yield pa.RecordBatch.from_pydict({"n": [number]})


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch."""
    return batch


def known(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Look the row up without a default."""
    number = batch.column("n")[0].as_py()
    return pa.RecordBatch.from_pydict({"n": [next(each for each in KNOWN if each == number)]})


class Wrapped:
    """An iterator of Python's, as a user's class has it."""

    def __init__(self, source: Batches, change: Callable[[pa.RecordBatch], pa.RecordBatch] = same):
        self._source, self._change = source, change

    def __iter__(self) -> Wrapped:
        """Return itself."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch, changed."""
        return self._change(self._pulled())

    def _pulled(self) -> pa.RecordBatch:
        return next(self._source)


class Limited(Wrapped):
    """An iterator that says itself where it ends."""

    left = 2

    def __next__(self) -> pa.RecordBatch:
        """Return two batches."""
        if not self.left:
            raise StopIteration
        self.left -= 1
        return super().__next__()


class Named(Wrapped):
    """An iterator whose `__next__` has another name too."""

    def pull(self) -> pa.RecordBatch:
        """Return the next batch, or raise the end itself."""
        for each in self._source:
            return self._change(each)
        raise StopIteration

    __next__ = pull


class Divided(Wrapped):
    """An iterator whose end comes from another method of the same object."""

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch, changed."""
        return self._change(self._first())

    def _first(self) -> pa.RecordBatch:
        for each in self._source:
            return each
        raise StopIteration


def logged(method: Callable[[Any], pa.RecordBatch]) -> Callable[[Any], pa.RecordBatch]:
    """Decorate a method, as a logger or a timer does."""

    @functools.wraps(method)
    def wrapper(*given: Any) -> pa.RecordBatch:
        return method(*given)

    return wrapper


class Decorated(Named):
    """An iterator whose `__next__` is decorated."""

    __next__ = logged(logged(Named.pull))


class DecoratedLimit(Limited):
    """An iterator that says where it ends, in a decorated `__next__`."""

    __next__ = logged(Limited.__next__)


def read(source: Batches) -> Batches:
    """Return a reader of Arrow's, which is compiled and raises StopIteration in a method of its own."""
    return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), source)  # type: ignore[no-any-return]


def outputs(process: Callable[[Batches], Batches]) -> int:
    """Return how many batches the function yields."""
    return sum(1 for _ in run(process, "job.py:process", frozenset(), batches(), {}))


@pytest.mark.parametrize(
    ("process", "count"),
    [
        (lambda source: map(same, source), COUNT),
        (Wrapped, COUNT),
        (lambda source: Wrapped(Wrapped(source)), COUNT),
        (Limited, Limited.left),
        (lambda source: Wrapped(Limited(source)), Limited.left),
        (read, COUNT),
        (lambda source: Wrapped(read(source)), COUNT),
        (Named, COUNT),
        (lambda source: map(same, Named(source)), COUNT),
        (Divided, COUNT),
        (lambda source: Wrapped(Divided(source)), COUNT),
        (Decorated, COUNT),
        (DecoratedLimit, DecoratedLimit.left),
    ],
    ids=[
        "map",
        "class",
        "class of a class",
        "limit",
        "class of a limit",
        "reader",
        "class of a reader",
        "name",
        "map of a name",
        "method",
        "class of a method",
        "decorator",
        "limit in a decorator",
    ],
)
def test_iterator_ends_where_it_says_so_or_where_its_input_ends(
    process: Callable[[Batches], Batches], count: int
) -> None:
    """No kind of iterator is mistaken for a function that fails."""
    assert outputs(process) == count


@pytest.mark.parametrize(
    "process",
    [
        lambda source: map(known, source),
        lambda source: filter(known, source),
        lambda source: Wrapped(source, known),
        lambda source: Named(source, known),
        lambda source: Divided(source, known),
        lambda source: Decorated(source, known),
        lambda source: Wrapped(map(known, source)),
        lambda source: map(known, Wrapped(source)),
    ],
    ids=["map", "filter", "class", "name", "method", "decorator", "map in a class", "class in a map"],
)
def test_stop_iteration_of_a_function_is_its_error(process: Callable[[Batches], Batches]) -> None:
    """Taken for the end, it would lose the batch and all that follow."""
    with pytest.raises(FunctionFailed, match=r"StopIteration was raised within the function; .*py:\d+ in known") as it:
        outputs(process)
    assert "give next() a default" in it.value.what


def test_function_that_asks_an_input_beyond_its_end_fails() -> None:
    """The batch that it holds would be lost; a generator that does so fails as well."""

    def process(source: Batches) -> Batches:
        def three(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.concat_batches([batch, next(source), next(source)])

        return map(three, source)

    with pytest.raises(FunctionFailed, match="give next"):
        outputs(process)


def test_package_whose_name_begins_like_tailraces_belongs_to_the_user() -> None:
    """It may be installed in the same folder."""
    path = f"{Path(tailrace.__file__).parent}_jobs/job.py"
    made: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {}
    exec(compile("def one(batch):\n    return next(iter(()))\n", path, "exec"), made)
    with pytest.raises(FunctionFailed, match=r"job.py:2 in one"):
        outputs(lambda source: map(made["one"], source))


def test_lookup_that_fails_in_a_method_of_the_iterator_is_its_error() -> None:
    """Only a `raise` in such a method says that the output ends; `next()` without a default loses the batch."""

    class Looking(Divided):
        def _first(self) -> pa.RecordBatch:
            batch = super()._first()
            return next(batch for each in KNOWN if each == batch.column("n")[0].as_py())

    with pytest.raises(FunctionFailed, match=r"StopIteration was raised within the function; .*py:\d+ in _first"):
        outputs(Looking)
