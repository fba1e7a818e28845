"""The schema's errors in plain words, each with its place.

Pydantic speaks of inputs and models; the author of the file thinks of keys and values. A value is shown only if it
is a number, a word out of a list or the like: text may be a secret, and is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tailrace.config import OptionsUnknown, Pipeline, Section
from tailrace.config.file.places import ALLOWED_OPTIONS, Place, dotted, is_secret, keys, nearest, section_at
from tailrace.errors import ConfigInvalid

SHOWN_LENGTH = 60


@dataclass(frozen=True)
class Fault:
    """A problem at a place of the configuration."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.place)}: {self.message}" if self.place else self.message


@dataclass(frozen=True)
class Given:
    """The value at a place, the form in which it may be shown, and the schema's context for the error."""

    value: object
    shown: str
    context: Mapping[str, Any]


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return repr(str(value).lower())
    if isinstance(value, str | int | float):
        text = str(value)
        short = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 1] + "…"
        return repr(short) if isinstance(value, str) else short
    return _sort(value)


def _sort(value: object) -> str:
    if isinstance(value, Mapping | Section):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return "text" if isinstance(value, str) else "a single value"


def _enum(given: Given) -> str:
    choices = re.findall(r"'([^']*)'", str(given.context.get("expected", "")))
    near = nearest(str(given.value).lower(), choices)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{given.shown} is not one of {', '.join(choices)}{hint}"


def _text(given: Given) -> str:
    if given.value is None:
        return "has no value; it takes text"
    sort = _sort(given.value)
    return "takes text; put the value in quotes" if sort == "a single value" else f"takes text, not {sort}"


def _map(given: Given) -> str:
    if given.value is None:
        return "has no keys; remove it, or add some"
    return f"takes keys with values, not {_sort(given.value)}"


def _list(given: Given) -> str:
    return "has no value; it takes a list" if given.value is None else f"takes a list, not {_sort(given.value)}"


def _raised(given: Given) -> str:
    return str(given.context.get("error", "not valid"))


def _whole_number(given: Given) -> str:
    return f"{given.shown} is not a whole number"


def _number(given: Given) -> str:
    return f"{given.shown} is not a number"


WORDS: dict[str, Callable[[Given], str]] = {
    "missing": lambda _: "missing, and there is no default",
    "enum": _enum,
    "string_type": _text,
    "list_type": _list,
    "dict_type": _map,
    "model_type": _map,
    "model_attributes_type": _map,
    "value_error": _raised,
    "int_parsing": _whole_number,
    "int_parsing_size": _whole_number,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "float_parsing": _number,
    "float_type": _number,
    "not_a_time": lambda given: f"{given.shown} is not a time; write 1s, 500ms or 2m, or a number of seconds",
    "not_a_size": lambda given: f"{given.shown} is not a size; write 500kB, 64MB or 1GiB, or a number of bytes",
    "finite_number": lambda given: f"{given.shown} is not a finite number",
    "greater_than_equal": lambda given: f"{given.shown} is too small; the minimum is {given.context.get('ge')}",
    "greater_than": lambda given: f"{given.shown} is too small; it must be more than {given.context.get('gt')}",
    "less_than_equal": lambda given: f"{given.shown} is too large; the maximum is {given.context.get('le')}",
    "string_too_short": lambda _: "is empty",
    "string_too_long": lambda given: f"is too long; the maximum is {given.context.get('max_length')} characters",
}


def faults(
    error: ValidationError, root: type[Section] = Pipeline, texts: Mapping[Place, str] | None = None
) -> list[Fault]:
    """Return every fault that the schema found; `texts` are the values as written, where known."""
    found: list[Fault] = []
    for item in error.errors(include_url=False):
        place = tuple(part for part in item["loc"] if part != "[key]")
        context = item.get("ctx", {})
        raised = context.get("error")
        if isinstance(raised, OptionsUnknown):
            found += [_unknown_option(place, name, raised.allowed) for name in raised.names]
        elif item["type"] == "extra_forbidden":
            section = section_at(place[:-1], root)
            found.append(Fault(place, unknown("key", str(place[-1]), list(keys(section)) if section else [])))
        else:
            value = item.get("input")
            visible = (texts or {}).get(place) or shown(value)
            given = Given(value, "the value" if is_secret(place) else visible, context)
            word = WORDS.get(item["type"])
            found.append(Fault(place, word(given) if word else item["msg"]))
    return found


def unknown_options(data: Mapping[str, Any]) -> list[Fault]:
    """Return faults for unknown Kafka options; the schema checks names only once all values are valid."""
    found: list[Fault] = []
    for place, allowed in ALLOWED_OPTIONS.items():
        options: Any = data
        for part in place:
            options = options.get(part) if isinstance(options, Mapping) else None
        names = options if isinstance(options, Mapping) else ()
        found += [_unknown_option(place, name, allowed) for name in names if name not in allowed]
    return found


def _unknown_option(place: Place, name: str, allowed: frozenset[str]) -> Fault:
    return Fault((*place, name), unknown("Kafka option", name, sorted(allowed)))


def unknown(what: str, name: str, known: list[str]) -> str:
    """Return the message about an unknown name: it suggests the nearest known name, or lists them all."""
    near = nearest(name, [*known, *(each.replace(".", "_") for each in known)])
    if near is None:
        return f"unknown {what}; the known ones are: {', '.join(known)}"
    meant = near if near in known else next(each for each in known if each.replace(".", "_") == near)
    return f"unknown {what}; did you mean {meant!r}?"


def together(lines: Sequence[str]) -> str:
    """Return one problem, or several with their number, as an error says them."""
    return lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} problems", *(f"  {line}" for line in lines)])


def refusal(error: ValidationError, data: object, root: type[Section]) -> ConfigInvalid:
    """Return the error for a pipeline, or one of its sections, made in Python, with every problem in it."""
    found = faults(error, root)
    if root is Pipeline and isinstance(data, Mapping):
        found += unknown_options(data)
    return ConfigInvalid(
        together([str(fault) for fault in dict.fromkeys(found)]),
        kept="nothing was read from or written to Kafka",
        then="correct the configuration; `tailrace explain configuration` lists every key",
    )
