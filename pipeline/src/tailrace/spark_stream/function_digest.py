"""A digest of what a Python function computes, from its code, that is equal after a restart.

Pickles are not: they hold line numbers, file names and whatever order a set has in this process. So the function is
described by its bytecode and constants and, recursively, by what it uses: defaults, the values of its closure, and the
functions, classes and plain values that it finds by name. Of an installed package only names are compared.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import io
import json
import pickle
import re
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any

from tailrace.spark_stream.code_names import Use, Uses, content, defaults, looked_up

# Values that are equal if and only if their types and texts are.
_PLAIN = (
    *(NoneType, EllipsisType, bool, int, float, complex, str, bytes, bytearray, range, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal),
)
_CONTAINERS = (list, tuple, set, frozenset, dict, MappingProxyType)
# Functions and methods that are not written in Python; bound ones have what they are bound to.
_BUILTIN = (
    *(BuiltinFunctionType, MethodWrapperType),
    *(MethodDescriptorType, ClassMethodDescriptorType, WrapperDescriptorType),
)
# Python's own modules whose objects are values. Others hold what differs in each process: threads, files, variables.
_VALUES = frozenset(
    {"array", "collections", "datetime", "decimal", "fractions", "http", "ipaddress", "operator", "string", "types"}
    | {"zoneinfo"}
)
# What is code, rather than a value that it uses.
_WRAPPED = (functools.partial, functools.partialmethod, functools.singledispatchmethod, type(functools.cache(len)))
_CODE = (
    *(FunctionType, type, MethodType, staticmethod, classmethod, property, functools.cached_property),
    *(*_WRAPPED, *_BUILTIN),
)
_DEEPEST = 40  # objects in each other, before Python's limit of recursion
_PROTOCOL = 2  # of pickle, the first in which an object tells its type, its arguments and its state
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# What makes a class while it is unpickled, and the position of the id by which cloudpickle finds one of this process.
_TRACKED = {"_make_skeleton_class": 4, "_make_skeleton_enum": 5, "_make_typevar": 5}


def digest(command: bytes) -> str:
    """Return a digest of a function that PySpark has pickled; empty if it cannot be unpickled and read here.

    A function of a module is pickled as its name alone, so the same pickle may be of other code later.
    """
    try:
        found = _Unpickler(io.BytesIO(command)).load()
        return digest_of(found[0] if isinstance(found, tuple) else found)
    except Exception:  # the user's classes and modules take part, and may raise anything
        return ""


def digest_of(function: Any) -> str:
    """Return a digest of a function, or of another object that can be called."""
    return hashlib.sha256(json.dumps(_Description(_root(function)).all(function)).encode()).hexdigest()[:32]


class _Unpickler(pickle.Unpickler):
    """Makes each class again: cloudpickle would set the attributes of the user's own class to their old values."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name not in _TRACKED or not module.startswith("pyspark."):
            return found
        place = _TRACKED[name]
        return lambda *given: found(*(None if number == place else each for number, each in enumerate(given)))


@dataclass
class _Description:
    """Describes objects as JSON; a function or class that comes again is named by when it came first."""

    root: str  # the package of the function itself, which is described even if it is installed
    _seen: dict[int, int] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # so that no id is used twice
    _inside: list[int] = field(default_factory=list)
    _later: list[Callable[[], list[Any]]] = field(default_factory=list)  # what is described once all this is
    _told: set[tuple[int, Use]] = field(default_factory=set)  # the modules among that
    _passed: dict[int, ModuleType] = field(default_factory=dict)
    _found: set[str] = field(default_factory=set)  # what the code that has been described names, or may look up by text
    _values: bool = True  # whether values count that a function finds by name

    def all(self, function: Any) -> list[Any]:
        """Describe a function, then what other functions may use of the modules that are passed to them.

        Of the latter, only functions and classes count that some code names: their values may be new in each process.
        """
        described = [self.of(function), *self._rest()]
        self._values = False
        known: set[tuple[int, str]] = set()
        while more := [each for each in self._named() if each not in known]:
            known.update(more)
            for module, name in more:
                held = self._passed[module]
                described += [[held.__name__, name, self._member(held, name, Use())], *self._rest()]
        return described

    def _rest(self) -> Iterator[list[Any]]:
        while self._later:
            yield self._later.pop(0)()

    def _named(self) -> list[tuple[int, str]]:
        kinds = FunctionType, type, ModuleType, *_WRAPPED
        return [
            (number, name)
            for number, module in self._passed.items()
            for name in sorted(self._found & vars(module).keys())
            if isinstance(vars(module)[name], kinds)
        ]

    def of(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind in _PLAIN:
            self._found.update([value] if kind is str and value.isidentifier() else ())
            return [kind.__name__, repr(value)]
        if isinstance(value, PurePath):
            return ["path", str(value)]
        if kind is re.Pattern:
            return ["pattern", repr(value.pattern), value.flags]
        if kind is CodeType:
            return self._code(value)
        if id(value) in self._inside:
            return ["inside", len(self._inside) - self._inside.index(id(value))]
        self._inside.append(id(value))
        try:
            return self._nested(value)
        finally:
            self._inside.pop()

    def _nested(self, value: Any) -> list[Any]:
        if isinstance(value, functools.partial | functools.partialmethod):
            return ["partial", self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, functools.cached_property):
            return ["cached_property", self.of(value.func)]
        if isinstance(value, struct.Struct):
            return ["struct", self.of(value.format)]
        if isinstance(value, functools.singledispatchmethod):
            return ["singledispatchmethod", self.of(value.func), self.of(value.dispatcher.registry)]
        if isinstance(value, ModuleType):
            return self._module(value, Use())
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, _BUILTIN):
            return ["builtin", value.__qualname__, self.of(getattr(value, "__self__", None))]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.of(value.__func__)]
        if isinstance(value, property):
            return ["property", *(self.of(each) for each in (value.fget, value.fset))]
        if isinstance(value, FunctionType | type):
            return self._once(value)
        if self._own(type(value)):
            return ["instance", self.of(type(value)), self.of(_attributes(value)), self._base(value)]
        if isinstance(value, _CONTAINERS):
            return self._contents(value)
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # functools.cache
            return ["wrapped", self.of(wrapped)]
        if _root(type(value)) in _VALUES:
            return ["standard", type(value).__qualname__, self._pickled(value)]
        return ["other", type(value).__qualname__]

    def _base(self, value: Any) -> list[Any]:
        """Describe what an object of the user's class holds because it is a number, a text or a container, too."""
        plain: Any = next((kind for kind in type(value).__mro__ if kind in _PLAIN), None)
        if plain is not None:
            return [plain.__name__, plain.__repr__(value)]
        return self._contents(value) if isinstance(value, _CONTAINERS) else []

    def _contents(self, value: Any) -> list[Any]:
        name = type(value).__name__
        if isinstance(value, dict | MappingProxyType):
            return [name, *self._pairs(value.items())]
        ordered = sorted(value, key=self._alone) if isinstance(value, set | frozenset) else value
        return [name, *(self.of(each) for each in ordered)]

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
        return [[self.of(key), self.of(held)] for key, held in sorted(pairs, key=lambda pair: self._alone(pair[0]))]

    def _alone(self, value: Any) -> str:
        """Describe an object as if it came next: by this the members of a set are in the same order in each process."""
        apart = replace(self, _seen={**self._seen}, _kept=[*self._kept], _inside=[*self._inside], _later=[])
        apart = replace(apart, _told={*self._told}, _passed={}, _found=set())
        return json.dumps([apart.of(value), *apart._rest()])

    def _pickled(self, value: Any) -> list[Any]:
        """Describe what an object is made of when it is pickled; nothing if it cannot be."""
        try:
            made: Any = value.__reduce_ex__(_PROTOCOL)
        except TypeError:
            return []
        if isinstance(made, str):
            return ["global", made]
        call, arguments, *more = made
        state, items, pairs = (more + [None] * 3)[:3]
        return [
            *(self.of(each) for each in (call, arguments, state)),
            [self.of(each) for each in items or ()],
            self._pairs(pairs or ()),
        ]

    def _once(self, value: Any) -> list[Any]:
        if not self._own(value) and (self._seen or len(self._inside) > 1):
            return ["installed", value.__module__, value.__qualname__]
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = number = len(self._seen)
        self._kept.append(value)

        def described() -> list[Any]:
            return self._class(value) if isinstance(value, type) else self._function(value)

        if len(self._inside) < _DEEPEST:
            return described()
        self._later.append(lambda: [number, described()])
        return ["later", number]

    def _function(self, value: FunctionType) -> list[Any]:
        code, uses = value.__code__, Uses(value.__code__)
        cells = zip(code.co_freevars, map(content, value.__closure__ or ()), strict=True)
        return [
            "function",
            self._code(code),
            [self.of(value.__defaults__), self.of(value.__kwdefaults__)],
            [
                self._module(each, replace(uses.of(name), passed=True))
                for name, each in defaults(value).items()
                if isinstance(each, ModuleType)
            ],
            [self._used(each, uses.of(name)) for name, each in cells],
            [[name, self._global(value, name, uses.of(name))] for name in sorted(looked_up(code))],
        ]

    def _global(self, function: FunctionType, name: str, use: Use) -> list[Any]:
        return self._used(function.__globals__[name], use) if name in function.__globals__ else ["builtin"]

    def _used(self, value: Any, use: Use) -> list[Any]:
        if isinstance(value, ModuleType):
            return self._module(value, use)
        if self._values or isinstance(value, _CODE):
            return self.of(value)
        return ["value"]

    def _module(self, value: ModuleType, use: Use) -> list[Any]:
        """Name a module; describe later what a function takes of it, and of the modules in that."""
        if self._owned(value.__name__) and (id(value), use) not in self._told:
            self._told.add((id(value), use))
            self._kept.append(value)
            if use.passed:
                self._passed[id(value)] = value
            names = sorted(use.names & vars(value).keys())
            self._later.append(
                lambda: ["of", value.__name__, *([each, self._member(value, each, use)] for each in names)]
            )
        return ["module", value.__name__]

    def _member(self, module: ModuleType, name: str, use: Use) -> list[Any]:
        self._inside.append(id(module))  # what it has imported from an installed package is only named
        try:
            return self._used(vars(module)[name], replace(use, passed=use.passed or name in use.apart))
        finally:
            self._inside.pop()

    def _class(self, value: type) -> list[Any]:
        kept = (FunctionType, staticmethod, classmethod, property)
        members = {
            name: each
            for name, each in vars(value).items()
            if isinstance(each, kept) or not (name.startswith("__") or name in {"_abc_impl"})
        }
        return [
            "class",
            value.__name__,
            [self.of(each) for each in value.__bases__],
            [[name, self._used(members[name], Use())] for name in sorted(members)],
        ]

    def _code(self, code: CodeType) -> list[Any]:
        self._found.update(code.co_names)
        return [
            "code",
            code.co_code.hex(),
            code.co_exceptiontable.hex(),
            [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags],
            [*code.co_names, "", *code.co_varnames, "", *code.co_freevars, "", *code.co_cellvars],
            [self.of(each) for each in code.co_consts],
        ]

    def _own(self, value: Any) -> bool:
        return self._owned(getattr(value, "__module__", None) or "builtins")

    def _owned(self, module: str) -> bool:
        """Whether what a module contains belongs to the user's job, rather than to Python or an installed package."""
        root = module.partition(".")[0]
        if root in sys.stdlib_module_names or root in {"pyspark", "tailrace"}:
            return False
        if root in {self.root, "__main__"}:
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return file is not None and not _INSTALLED.intersection(PurePath(file).parts)


def _attributes(value: Any) -> dict[str, Any]:
    """Return an object's attributes, also those that have slots."""
    slots = {
        name
        for kind in type(value).__mro__
        for name, each in vars(kind).items()
        if isinstance(each, MemberDescriptorType)
    }
    return {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}


def _root(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]
