"""What the code of a Python function names, and what it does with it."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_VARIABLES = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@dataclass(frozen=True)
class Use:
    """What a function does with a variable, should that hold a module."""

    names: frozenset[str] = frozenset()  # what it may take of the module, and of the modules in that
    apart: frozenset[str] = frozenset()  # which of the names it does not only take something of
    passed: bool = True  # whether other code may use the module, too


def content(cell: Any) -> Any:
    """Return what a variable of a closure holds; None if that is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def defaults(function: FunctionType) -> dict[str, Any]:
    """Return a function's optional arguments with their values."""
    values, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return dict(zip(names, values, strict=True)) | (function.__kwdefaults__ or {})


class Uses:
    """What a function, with those inside it, does with its variables."""

    def __init__(self, code: CodeType) -> None:
        self._apart: set[str] = set()
        self._joined: set[str] = set()  # what is taken of one variable or another
        self._taken: dict[str, set[str]] = {}
        for each in _codes(code):
            self._read(each)

    def _read(self, code: CodeType) -> None:
        variable = ""
        steps = [step for step in dis.get_instructions(code) if step.opname not in {"EXTENDED_ARG", "CACHE"}]
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            if step.opname in _ATTRIBUTES and step.is_jump_target:
                self._joined.add(step.argval)
            if step.opname in _ATTRIBUTES and variable:
                self._taken[variable].add(step.argval)
            elif step.opname in _VARIABLES:
                variable = step.argval
                self._taken.setdefault(variable, set())
            else:
                variable = ""
            takes = following is not None and following.opname in _ATTRIBUTES
            if step.opname in {*_VARIABLES, "LOAD_ATTR"} and not takes:
                self._apart.add(step.argval)

    def of(self, variable: str) -> Use:
        """Return what is done with a variable."""
        names = self._taken.get(variable, set()) | (self._joined if variable in self._apart else set())
        return Use(frozenset(names), frozenset(self._apart), variable in self._apart)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def looked_up(code: CodeType) -> set[str]:
    """Return the names that a function and those inside it look up in their module."""
    return {step.argval for each in _codes(code) for step in dis.get_instructions(each) if step.opname == "LOAD_GLOBAL"}
