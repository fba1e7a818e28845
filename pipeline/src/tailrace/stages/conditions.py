"""Conditions without a JVM: the part of Spark SQL that Arrow can evaluate with the same result.

An Arrow function runs in Python, next to no Spark. A condition is parsed here into a tree, and evaluated there
(`condition_values`). What might differ from Spark is refused when the pipeline is loaded, never approximated: a test
compares both on random records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`[^`]+`)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><=>|<>|!=|==|<=|>=|[=<>!().,-])
    )""",
    re.VERBOSE | re.ASCII,
)
_COMPARISONS: Final = {
    "=": "=",
    "==": "=",
    "<=>": "<=>",
    "<>": "!=",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
# Words that name no column unless they are quoted.
_RESERVED: Final = frozenset(
    {
        "and", "or", "not", "is", "null", "true", "false", "in", "between", "like", "rlike", "ilike", "case", "when",
        "cast", "exists", "escape", "any", "some", "all",
    }
)  # fmt: skip
FUNCTIONS: Final = frozenset({"length", "char_length", "character_length", "trim"})

Scalar = bool | int | float | Decimal | str | date | datetime | None


class Unsupported(Exception):
    """The condition is not SQL, or is SQL that only Spark can evaluate; the text says where."""


@dataclass(frozen=True)
class Literal:
    """A constant."""

    value: Scalar


@dataclass(frozen=True)
class Column:
    """A field of the record, with the names that lead into it."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Call:
    """An operator or a function with its arguments."""

    name: str
    arguments: tuple[Node, ...]


Node = Literal | Column | Call


def parse(text: str) -> Node:
    """Parse a condition; raise Unsupported if it has anything but what is listed here."""
    parser = _Parser(list(_tokens(text)))
    found = parser.either()
    if parser.kind != "end":
        raise Unsupported(f"only Spark knows what {parser.word!r} means there")
    return found


def columns(node: Node) -> Iterator[Column]:
    """Yield the columns that a condition uses."""
    if isinstance(node, Column):
        yield node
    elif isinstance(node, Call):
        for each in node.arguments:
            yield from columns(each)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"only Spark can read {text[place:].strip()[:20]!r}")
        yield match.lastgroup, match[match.lastgroup]
        place = match.end()
    yield "end", "the end"


class _Parser:
    """Recursive descent, with Spark's precedence: OR, AND, NOT, then comparisons."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def kind(self) -> str:
        """The kind of the next token."""
        return self._tokens[self._next][0]

    @property
    def word(self) -> str:
        """The next token; keywords in lower case."""
        kind, text = self._tokens[self._next]
        return text.lower() if kind == "word" else text

    def _take(self) -> str:
        found = self._tokens[self._next][1]
        self._next += 1
        return found

    def _took(self, *words: str) -> bool:
        if self.kind in {"word", "sign"} and self.word in words:
            self._next += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._took(word):
            raise Unsupported(f"{word.upper()!r} is expected at {self.word!r}")

    def either(self) -> Node:
        """Parse conditions that OR joins."""
        found = self._both()
        while self._took("or"):
            found = Call("or", (found, self._both()))
        return found

    def _both(self) -> Node:
        found = self._negated()
        while self._took("and"):
            found = Call("and", (found, self._negated()))
        return found

    def _negated(self) -> Node:
        if self._took("not", "!"):
            return Call("not", (self._negated(),))
        return self._predicate()

    def _predicate(self) -> Node:
        left = self._value()
        if self.kind == "sign" and self.word in _COMPARISONS:
            return Call(_COMPARISONS[self._take()], (left, self._value()))
        if self._took("is"):
            negated = self._took("not")
            for word, name in (("null", "is null"), ("true", "is true"), ("false", "is false")):
                if self._took(word):
                    return _unless(negated, Call(name, (left,)))
            raise Unsupported(f"IS {self.word} is evaluated by Spark only")
        negated = self._took("not")
        if self._took("in"):
            self._expect("(")
            found: Node = Call("=", (left, self._value()))
            while self._took(","):
                found = Call("or", (found, Call("=", (left, self._value()))))
            self._expect(")")
            return _unless(negated, found)
        if self._took("between"):
            low = self._value()
            self._expect("and")
            return _unless(negated, Call("and", (Call(">=", (left, low)), Call("<=", (left, self._value())))))
        if self._took("like"):
            pattern = self._value()
            if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
                raise Unsupported("LIKE takes a text in quotes")
            return _unless(negated, Call("like", (left, pattern)))
        if negated:
            raise Unsupported(f"NOT {self.word} is evaluated by Spark only")
        return left

    def _value(self) -> Node:
        if self._took("("):
            found = self.either()
            self._expect(")")
            return found
        if self._took("-"):
            if self.kind != "number":
                raise Unsupported("arithmetic is evaluated by Spark only")
            return Literal(-_number(self._take()))
        if self.kind == "number":
            return Literal(_number(self._take()))
        if self.kind == "text":
            return Literal(_text(self._take()))
        if self._took("null"):
            return Literal(None)
        if self.word in {"true", "false"} and self.kind == "word":
            return Literal(self._take().lower() == "true")
        if self.kind not in {"word", "quoted"} or (self.kind == "word" and self.word in _RESERVED):
            raise Unsupported(f"only Spark knows what {self.word!r} means there")
        return self._named()

    def _named(self) -> Node:
        name = self.word
        first = self._take()
        if name in {"date", "timestamp"} and self.kind == "text":
            return Literal(_moment(name, _text(self._take())))
        if self._took("("):
            if name not in FUNCTIONS:
                raise Unsupported(f"the function {name}() is evaluated by Spark only")
            inner = self.either()
            self._expect(")")
            return Call("trim" if name == "trim" else "length", (inner,))
        path = [first.strip("`")]
        while self._took("."):
            if self.kind not in {"word", "quoted"}:
                raise Unsupported(f"a field's name is expected at {self.word!r}")
            path.append(self._take().strip("`"))
        return Column(tuple(path))


def _unless(negated: bool, node: Node) -> Node:
    return Call("not", (node,)) if negated else node


def _number(text: str) -> int | float | Decimal:
    """Read a number as Spark does: a point makes it a decimal, an exponent a double."""
    if "e" in text.lower():
        return float(text)
    if "." in text:
        return Decimal(text)
    number = int(text)
    if number >= 2**63:
        raise Unsupported(f"{text} is too large for a number without a point")
    return number


def _text(quoted: str) -> str:
    """Read a text; escapes other than of quotes and of itself are left to Spark."""
    inner = quoted[1:-1]
    if re.search(r"\\[^'\"\\]", inner):
        raise Unsupported(f"the escape in {quoted} is read by Spark only")
    return re.sub(r"\\(.)", r"\1", inner)


def _moment(kind: str, text: str) -> date | datetime:
    try:
        if kind == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return date.fromisoformat(text)
        if kind == "timestamp" and re.fullmatch(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|\+00:00)?", text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        pass
    raise Unsupported(
        f"{kind.upper()} {text!r} is read by Spark only; write it as 2026-11-20" + " 10:00:00" * (kind != "date")
    )
