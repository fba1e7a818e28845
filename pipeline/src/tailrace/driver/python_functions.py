"""The Python functions in a frame, and the modules that the workers import to run them.

PySpark pickles a function of a module by its name, and any other function with its code. So the pickle shows which
modules a worker imports, and that decides whether the workers run the code that the driver has loaded.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from tailrace.driver.catalyst import items, tree

_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF"})
_OWN_NAMES = frozenset({"__module__", "__name__"})  # keys of a function with its code, for the module that it is from
_GETS = frozenset({"BINGET", "GET", "LONG_BINGET"})
_PUTS = frozenset({"BINPUT", "LONG_BINPUT", "PUT"})
# All that a function of more than 1 MB shows, which PySpark sends apart.
_BROADCAST = frozenset({"pyspark.core.broadcast", "_from_id"})


def imported(frame: DataFrame, made: DataFrame, modules: frozenset[str]) -> bool:
    """Return whether a function in `made`, and not yet in `frame`, may import one of these modules."""
    before = set(_commands(frame))
    texts = (_texts(each) for each in _commands(made) if each not in before)
    return any(each == _BROADCAST or not modules.isdisjoint(each) for each in texts)


def _commands(frame: DataFrame) -> Iterator[bytes]:
    """Yield the pickled functions of a frame."""
    for node in tree(frame._jdf.queryExecution().analyzed()):
        for expression in node.expressions:
            yield from commands(expression)


def commands(expression: Any) -> Iterator[bytes]:
    """Yield the pickled functions in an expression."""
    for each in _without_lists(expression):
        if each.getClass().getSimpleName() in _PYTHON:
            command = each.func().command()
            yield bytes(command if isinstance(command, bytes) else command.unsafeArray())


def _without_lists(expression: Any) -> Iterator[Any]:
    """Yield an expression and all below it, but for lists of literals, which may be long."""
    yield expression
    listed = expression.getClass().getSimpleName() == "In" and expression.inSetConvertible()
    for each in [expression.value()] if listed else items(expression.children()):
        yield from _without_lists(each)


def _texts(command: bytes) -> frozenset[str]:
    """Return the texts of a pickle, but for the name of the module that a function with its code is from.

    Among them are the modules of functions without their code, and the names that an `import` within code has.
    """
    found: set[str] = set()
    memo: dict[int, Any] = {}
    last: list[Any] = [None, None]  # the last two values, if they are texts
    for step, value, _ in pickletools.genops(command):
        if step.name == "FRAME":
            continue
        if step.name == "MEMOIZE" or step.name in _PUTS:
            memo[len(memo) if value is None else value] = last[-1]
            continue
        if step.name == "STACK_GLOBAL":
            found |= {each for each in last if each is not None}
        elif step.name == "GLOBAL":
            found |= set(str(value).split(" "))
        known = memo.get(value or 0) if step.name in _GETS else value
        text = known if isinstance(known, str) and step.name != "GLOBAL" else None
        if text is not None and last[-1] not in _OWN_NAMES:
            found.add(text)
        last = [last[-1], text]
    return frozenset(found)
