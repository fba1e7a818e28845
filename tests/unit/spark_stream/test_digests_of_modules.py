"""The digest of a function changes with what it uses of the job's own modules, and with nothing else of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.digests import DEEP, HELPERS, inside, laid_out
from tailrace.spark_stream.function_digest import digest_of

ASIDE = """
import functools
import helpers as everywhere

class Rule:
    def __init__(self, keys):
        self.keys = keys
    def apply(self, value):
        return self.keys.clean(value)

class Kinds:
    @functools.singledispatchmethod
    def of(self, value):
        return 1
    @of.register
    def _(self, value: int):
        return 2
    @of.register
    def _(self, value: str):
        return 4

def given(keys, value):
    return keys.clean(value) + keys.LIMIT

def passed(value):
    return given(everywhere, value)

def make(divisor):
    import helpers
    import parts
    import parts.deep
    rule = Rule(helpers)
    kinds = Kinds()
    FORMS
"""
FORMS = {
    "closure": "return lambda value: helpers.clean(value) + helpers.LIMIT",
    "default": "return lambda value, keys=helpers: keys.clean(value) + keys.LIMIT",
    "attribute": "return lambda value: rule.apply(value)",
    "list": "return lambda value, all=[helpers]: all[0].clean(value)",
    "argument": "return lambda value: given(helpers, value)",
    "global": "return lambda value: passed(value)",
    "text": "return lambda value: getattr(helpers, 'clean')(value)",
    "package": "return lambda value: parts.deep.far(value)",
    "kind": "return lambda value: kinds.of(value)",
}


@pytest.mark.parametrize(
    ("form", "change"),
    [
        (form, (".strip()", ".lower()"))
        for form in ("closure", "default", "attribute", "list", "argument", "global", "text")
    ]
    + [(form, ("LIMIT = 1", "LIMIT = 2")) for form in ("closure", "default")]
    + [("package", ("value - 70", "value - 71")), ("kind", ("return 2", "return 3"))],
)
def test_digest_changes_with_a_module_that_a_function_holds(
    tmp_path_factory: pytest.TempPathFactory, form: str, change: tuple[str, str]
) -> None:
    """A module that the function around it has imported, or was given, is a value like others."""
    found = []
    for texts in ((ASIDE, HELPERS, DEEP), [text.replace(*change) for text in (ASIDE, HELPERS, DEEP)]):
        job, helpers, deep = (text.replace("FORMS", FORMS[form]) for text in texts)
        found.append(inside(tmp_path_factory.mktemp("job"), job, helpers, deep, 5))
    assert found[0] != found[1]


RULES = {
    "eu": "import functools\nSALT = 'a'\n@functools.cache\ndef of(value): return value + 1\n"
    "add = functools.partial(of)\n",
    "us": "SALT = 'b'\n",
}
FAR = "".join(f"def f{n}(value): return f{n + 1}(value)\n" for n in range(60))


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("(eu if value else us).SALT", ("'a'", "'c'")),
        ("(eu or us).SALT", ("'a'", "'c'")),
        ("given(eu, value)", ("value + 1", "value + 2")),
        ("added(eu, value)", ("value + 1", "value + 2")),
    ],
)
def test_digest_changes_with_what_one_module_or_another_gives(
    tmp_path: Path, key: str, change: tuple[str, str]
) -> None:
    """Also if that is a function that is cached or partly applied."""
    job = (
        "import eu, us\ndef given(held, value): return held.of(value)\ndef added(held, value): return held.add(value)\n"
    )
    job += f"def make(_): return lambda value: {key}\n"
    changed = {name: text.replace(*change) for name, text in RULES.items()}
    assert laid_out(tmp_path / "a", job, RULES) != laid_out(tmp_path / "b", job, changed)


@pytest.mark.parametrize("last", [*range(30, 42), 60])
@pytest.mark.parametrize("ends", ["KINDS", "guess_type"])
def test_digest_of_functions_that_call_each_other_deeply_is_the_same_in_each_process(
    monkeypatch: pytest.MonkeyPatch, last: int, ends: str
) -> None:
    """What lies too deep is described later, and in the same way."""
    classes = "class A: x = 1\nclass B: x = 2\nclass C: x = 3\nKINDS = {A, B, C}\nfrom mimetypes import guess_type\n"
    found = set()
    for number in range(6):
        space: dict[str, Any] = {"__name__": "__main__"}
        kept = [object() for _ in range(number * 7)]  # so that the classes lie elsewhere
        exec(
            f"{classes}{FAR}def f{last}(value): return {ends}(value) if {ends} is guess_type else value in {ends}",
            space,
        )
        monkeypatch.setattr("mimetypes._db", None if number < 3 else number)
        found.add(digest_of(space["f0"]))
        del kept
    assert len(found) == 1


PARTS = {
    "parts": "def scale(value):\n    return value * 2\n",
    "parts.deep": "import parts\ndef far(value):\n    return parts.scale(value)\n",
}


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("parts.deep.far(value)", ("value * 2", "value * 3")),
        ("given(parts.deep, value)", ("value * 2", "value * 3")),
        ("given(parts.deep, value)", ("parts.scale", "-parts.scale")),
    ],
)
def test_digest_changes_with_modules_that_use_each_other(tmp_path: Path, key: str, change: tuple[str, str]) -> None:
    """Each may come again while the other one is described."""
    job = (
        f"import parts.deep\ndef given(held, value): return held.far(value)\ndef make(_): return lambda value: {key}\n"
    )
    changed = {name: text.replace(*change) for name, text in PARTS.items()}
    assert laid_out(tmp_path / "a", job, PARTS) != laid_out(tmp_path / "b", job, changed)


def test_digest_of_many_modules_that_use_each_other_is_found(tmp_path: Path) -> None:
    """They are described one after the other, and not inside each other: again and again, or too deep."""
    names = [f"m{number}" for number in range(12)]
    all_of = {
        name: f"import {', '.join(names)}\ndef f(value): return {' + '.join(f'{each}.f(value)' for each in names)}\n"
        for name in names
    }
    chain = {
        f"c{number}": f"import c{number + 1}\ndef g(value): return c{number + 1}.g(value)\n" for number in range(150)
    }
    ends = [{"c150": f"def g(value): return {number}\n"} for number in range(2)]
    job = "import m0\n" + "".join(f"import c{number}\n" for number in reversed(range(151)))
    job += "def given(held, value): return held.f(value)\n"
    job += "def make(_): return lambda value: given(m0, value) + c0.g(value)\n"
    first, second = (laid_out(tmp_path / str(len(str(end))), job, all_of | chain | end) for end in ends)
    assert first
    assert first != second


@pytest.mark.parametrize("form", ["closure", "argument"])
def test_digest_does_not_change_with_what_no_code_names(tmp_path_factory: pytest.TempPathFactory, form: str) -> None:
    """A module may hold what is new in each process; such a digest would refuse an open batch for good."""
    found = []
    for text in ("strip_count = count = 1", "strip_count = count = 2"):
        helpers = HELPERS.replace("value.strip()", 'value.strip() * value.count("a")')
        helpers += f"\n{text}\n\ndef log(message):\n    print(strip_count, message)\n"
        job = "import math\n" + ASIDE.replace(
            "FORMS", FORMS[form].replace("return lambda value:", "return lambda value: math.log(value) +")
        )
        found.append(inside(tmp_path_factory.mktemp("job"), job, helpers, DEEP, 5))
    assert found[0] == found[1]
