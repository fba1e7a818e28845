"""The digest of a function changes with what it computes, and with nothing else."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import cloudpickle

from support.digests import DEEP, HELPERS, SHOWN, inside, lay_out
from tailrace.spark_stream.function_digest import _Description, digest, digest_of

JOB = """
import functools
import re
from helpers import clean
import helpers
import parts.deep
import parts

PATTERN = re.compile("a+")
WORDS = {"one", "two", "three"}
LIMITS = {"low": 1, "high": 9}

class Rule:
    factor = 3
    def apply(self, value):
        return value * self.factor

def helper(value):
    return value + 1

@functools.cache
def cached(value):
    return value - 1

def make(divisor):
    rule = Rule()
    def key(value, start=0, *, words=frozenset({"x", "y"})):
        if value in {"p", "q", "r"} or value in WORDS or PATTERN.match(str(value)):
            return LIMITS["low"]
        try:
            far = parts.deep.far(value)
            return (rule.apply(helper(cached(value))) + far) % divisor
        except ValueError:
            return sorted(clean(each) + helpers.more(each) for each in words)
    return key
"""
IMPORTED = "from job import make\n" + SHOWN


def pickled(function: Callable[[int], int]) -> bytes:
    """Pickle a function as PySpark does for its workers."""
    return bytes(cloudpickle.dumps((function, None)))  # type: ignore[no-untyped-call]


def shown(folder: Path, job: str = JOB, helpers: str = HELPERS, seed: str = "0", script: str = "") -> str:
    """Return the digest in a process of its own, of a function of its script or of a module next to it."""
    folder.mkdir(exist_ok=True)
    lay_out(folder, helpers)
    (folder / "job.py").write_text(job)
    (folder / "main.py").write_text(script or job + SHOWN)
    env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, str(folder / "main.py")], env=env, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.mark.parametrize("script", ["", IMPORTED], ids=["of-the-script", "imported"])
def test_same_function_has_the_same_digest_in_another_process_file_and_line(tmp_path: Path, script: str) -> None:
    """Sets have another order there, and objects other addresses."""
    first = shown(tmp_path / "a", script=script)
    assert len(first) == 32
    assert shown(tmp_path / "a", seed="7", script=script) == first
    moved = "# A comment.\n\n" + JOB.replace("def helper", "# Another one.\ndef helper")
    assert shown(tmp_path / "b", moved, HELPERS.replace("return value\n", "return None\n"), "42", script) == first


@pytest.mark.parametrize(
    "change",
    [
        ("make(5)", "make(7)"),
        ("value + 1", "value + 2"),
        ("value - 1", "value - 2"),
        ("factor = 3", "factor = 4"),
        ("value * self", "value + self"),
        ('"low": 1', '"low": 2'),
        ('"three"}', '"four"}'),
        ('"a+"', '"b+"'),
        ("start=0", "start=1"),
        ('"y"}', '"z"}'),
        ('"r"}', '"s"}'),
        ("except ValueError", "except TypeError"),
        (".strip()", ".lower()"),
        ('+ "m"', '+ "n"'),
        (">q", "<q"),
        ("return 40", "return 41"),
        ("value - 70", "value - 71"),
    ],
    ids=lambda change: change[1],
)
def test_digest_changes_with_what_the_function_uses(
    tmp_path_factory: pytest.TempPathFactory, change: tuple[str, str]
) -> None:
    """Closures, defaults, constants, and the functions, classes and values that it finds by name."""
    spaces = []
    for old, new in (("", ""), change):
        job, helpers, deep = (text.replace(old, new) if old else text for text in (JOB, HELPERS, DEEP))
        assert not old or (job, helpers, deep) != (JOB, HELPERS, DEEP) or old == "make(5)"
        spaces.append(inside(tmp_path_factory.mktemp("job"), job, helpers, deep, 7 if old == "make(5)" else 5))
    assert spaces[0] != spaces[1]


HELD = """
import collections
import datetime
import fractions
import functools
import operator
import re
import types
import zoneinfo

class Salt(int):
    pass

class Slots:
    __slots__ = ("by",)
    def __init__(self, by):
        self.by = by

class Missing(dict):
    def __missing__(self, key):
        return 0

class Pair(collections.namedtuple("Pair", "left right")):
    def both(self):
        return self.left + self.right

HELD = {value}

def key(given):
    return HELD(given)

print(digest_of(key))
"""
IMPORT = "from tailrace.spark_stream.function_digest import digest_of\n"


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ("zoneinfo.ZoneInfo('UTC')", ("UTC", "Europe/Paris")),
        ("datetime.timezone(datetime.timedelta(hours=1))", ("=1", "=2")),
        ("re.compile('a+').match", ("a+", "a")),
        ("re.compile('a+').match", ("match", "search")),
        ("{1: 2}.get", ("2", "3")),
        ("types.MappingProxyType({1: 2})", ("2", "3")),
        ("operator.itemgetter('a')", ("'a'", "'b'")),
        ("str.upper", ("upper", "lower")),
        ("'a'.startswith", ("'a'", "'b'")),
        ("collections.deque([1])", ("[1]", "[2]")),
        ("functools.cache({1: 2}.get)", ("2", "3")),
        ("fractions.Fraction(1, 2)", ("2)", "3)")),
        ("Salt(8)", ("8)", "16)")),
        ("[Salt(8)]", ("8)", "16)")),
        ("Slots(8)", ("8)", "16)")),
        ("Missing({1: 2})", ("return 0", "return 1")),
        ("Missing({1: 2})", ("2}", "3}")),
        ("Pair(1, 2)", ("left +", "left -")),
    ],
)
def test_digest_changes_with_what_objects_of_pythons_own_types_hold(value: str, change: tuple[str, str]) -> None:
    """A zone, a bound method or a mapping decides where a record goes, like the function's code."""
    before = IMPORT + HELD.replace("{value}", value)
    after = before.replace(*change)
    assert before != after
    first, second, again = (printed(text) for text in (before, after, before))
    assert len(first) == 32
    assert first == again != second


def test_object_that_is_another_one_in_each_process_counts_by_its_type() -> None:
    """A lock, a thread, a file or the environment; a batch that is delivered in part would be refused at each start."""
    parts = (
        *("threading.Lock()", "Slots(threading.Lock())", "os.environ", "random.Random()", "re.compile", "Missing"),
        *("threading.current_thread()", "logging.getLogger('job')", "open(os.devnull)", "weakref.ref(Slots)"),
        *("concurrent.futures.ThreadPoolExecutor(1)", "time.time", "tempfile.TemporaryDirectory()"),
        *("contextvars.ContextVar('one')", "queue.Queue()", "{Salt(n) for n in range(9)}", "print", "types"),
    )
    used = "concurrent.futures, contextvars, logging, os, queue, random, tempfile, threading, time, weakref"
    text = IMPORT + f"import {used}\n" + HELD.replace("{value}", f"[{', '.join(parts)}]")
    assert printed(text) == printed(text + "\n# other\n", PYTHONHASHSEED="7", HOSTNAME="another")


@pytest.mark.parametrize(
    "value",
    [
        "{Pair(n, 1) for n in range(4)}",
        "{Text(n) for n in range(4)}",
        "{*Kind}",
        "{each: 1 for each in {*Kind}}",
        "frozenset({(Pair(n, 1), Text(m)) for n in range(3) for m in range(3)})",
    ],
)
def test_set_of_objects_has_the_same_digest_whatever_its_order(value: str) -> None:
    """Their class is described with the one that comes first, and texts have another order in each process."""
    text = IMPORT + "import enum\nclass Text(str): pass\nKind = enum.Enum('Kind', 'A B C D')\n"
    text += HELD.replace("{value}", value)
    assert len({printed(text, PYTHONHASHSEED=str(seed)) for seed in range(5)}) == 1


def test_digest_of_objects_in_objects_takes_no_longer_than_they_are_many() -> None:
    """Each describes the one inside it once."""

    class Node:
        def __init__(self, inner: object) -> None:
            self.inner = inner

    node, calls = Node(None), 0
    for _ in range(40):
        node = Node(node)

    class Counting(_Description):
        def of(self, value: object) -> list[object]:
            nonlocal calls
            calls += 1
            return super().of(value)

    Counting("").of(node)
    assert calls < 1000


def printed(script: str, **env: str) -> str:
    """Return what a script prints in a process of its own."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True).stdout.strip()


def test_function_that_calls_itself_has_a_digest() -> None:
    """Its closure contains it."""

    def count(value: int) -> int:
        return count(value - 1) + 1 if value else 0

    assert digest(pickled(count)) == digest_of(count)


def test_class_of_the_job_keeps_its_attributes_while_a_digest_is_computed() -> None:
    """Unpickling as the workers do would set them to what they were when the function was pickled."""

    class Counter:
        number = 1

    def key(value: int) -> int:
        return value % Counter.number

    before = pickled(key)
    Counter.number = 2
    assert digest(before) != digest_of(key)
    assert Counter.number == 2


@pytest.mark.parametrize("command", [b"", b"\x80\x05.", b"no pickle"])
def test_function_that_cannot_be_unpickled_has_no_digest(command: bytes) -> None:
    """It is then known by its name alone, as in earlier versions."""
    assert digest(command) == ""


def test_digest_is_of_the_code_that_a_module_has_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module is pickled as its name, so the pickle stays the same when the module is edited."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file, found = tmp_path / "tailrace_test_keys.py", list[tuple[bytes, str]]()
    for key in ("value % 2", "value // 10 % 2"):
        file.write_text(f"def key(value):\n    return {key}\n")
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
        command = cloudpickle.dumps(importlib.import_module(file.stem).key)  # type: ignore[no-untyped-call]
        found.append((command, digest(command)))
    (before, first), (after, second) = found
    assert before == after
    assert first != second
