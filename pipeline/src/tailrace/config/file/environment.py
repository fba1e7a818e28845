"""Environment variables: TAILRACE_ variables that override the file, and ${NAME} inside its values.

A variable's name is TAILRACE_ and the path of the key, with `__` between levels and `_` for a dot. In a map of
options the last part is the option's name, so TAILRACE_KAFKA__OPTIONS__SASL_PASSWORD sets `sasl.password`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tailrace.config import Pipeline, Section
from tailrace.config.file.places import (
    ALLOWED_OPTIONS,
    PREFIX,
    RESERVED,
    Key,
    Kind,
    Place,
    dotted,
    keys,
    nearest,
    variable,
    variables,
)

REFERENCE = re.compile(r"\$(\$)?\{([^}]*)\}")
RULES = ("process", "validate")  # where text may stand for a section
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Kubernetes sets variables in each pod for the services around it; those of a service called tailrace look like our
# keys. A service's name cannot end with a dash, so Kubernetes' variables never have two underscores there.
KUBERNETES = re.compile(r"TAILRACE_(\w*[^\W_]_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


@dataclass(frozen=True)
class Override:
    """A variable that sets the value at a place."""

    name: str
    place: Place
    value: Any


@dataclass(frozen=True)
class Refused:
    """A variable that names no key, or whose value cannot be read."""

    name: str
    message: str


class Substitution:
    """Replaces ${NAME} inside a value; `$${NAME}` is the literal text."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, text: str) -> tuple[str, str | None]:
        """Return the text with its variables replaced, and a message about those that are wrong."""
        wrong: list[str] = []

        def one(match: re.Match[str]) -> str:
            escaped, name = match.groups()
            if escaped:
                return match.group(0)[1:]
            if not NAME.fullmatch(name):
                wrong.append("${…} takes the name of a variable; write $${…} for the literal text")
            elif name not in self._environment:
                wrong.append(f"the variable {name} is not set; write $${{{name}}} for the literal text")
            return self._environment.get(name, "")

        return REFERENCE.sub(one, text), "; ".join(dict.fromkeys(wrong)) or None


def overrides(environment: Mapping[str, str], data: Mapping[str, Any]) -> tuple[list[Override], list[Refused]]:
    """Return the valid overrides and the refused variables; `data` is the file, whose spelling of an option wins."""
    good: list[Override] = []
    bad: list[Refused] = []
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in RESERVED or KUBERNETES.fullmatch(name):
            continue
        found = _place(name, data)
        if isinstance(found, Refused):
            bad.append(found)
            continue
        place, kind = found
        try:
            good.append(Override(name, place, _value(environment[name], kind)))
        except yaml.YAMLError:
            bad.append(Refused(name, f"{dotted(place)}: the value is not YAML; put it in quotes"))
    return good, bad


def apply(data: dict[str, Any], override: Override) -> list[Place]:
    """Set the override's value in `data`; return the places of the mappings created on the way."""
    made: list[Place] = []
    inner: Any = data
    for depth, part in enumerate(override.place[:-1], start=1):
        if inner.get(part) is None:
            inner[part] = {}
            made.append(override.place[:depth])
        elif isinstance(inner[part], str) and override.place[:depth] == (*RULES, part):
            inner[part] = {"condition": inner[part]}
        inner = inner[part]
        if not isinstance(inner, dict):
            return made  # The file has no mapping there; the schema will say so.
    inner[override.place[-1]] = override.value
    return made


def _place(name: str, data: Mapping[str, Any]) -> tuple[Place, Kind] | Refused:
    parts = name.removeprefix(PREFIX).split("__")
    place: tuple[str, ...] = ()
    section: type[Section] = Pipeline
    for index, part in enumerate(parts):
        key = _key(section, part)
        if key is None:
            return _unknown(name)
        place = (*place, key.name)
        below = "__".join(parts[index + 1 :])
        if key.is_map and not below:
            return Refused(name, f"{dotted(place)} has keys of its own; set those, as {variable(*place)}__…")
        if key.kind is Kind.SECTIONS and key.section is not None:
            rule, _, last = below.rpartition("__")
            inner = _key(key.section, last) if rule else None
            if inner is not None:
                return (*place, _option(rule, place, key, data), inner.name), inner.kind
            return (*place, _option(below, place, key, data)), Kind.TEXT
        if key.kind is Kind.SECTION and key.section is not None:
            section = key.section
        elif key.is_map:
            return (*place, _option(below, place, key, data)), key.kind
        else:
            return (place, key.kind) if not below else _unknown(name)
    return _unknown(name)


def _key(section: type[Section], part: str) -> Key | None:
    word = part.lower()
    return next((key for key in keys(section).values() if key.name.replace(".", "_") == word), None)


def _option(name: str, place: Place, key: Key, data: Mapping[str, Any]) -> str:
    dots = key.kind is Kind.OPTIONS
    other = {Kind.OPTIONS: r"\.", Kind.SECTIONS: r"\W"}.get(key.kind)  # what a variable's name writes as _

    def folded(option: str) -> str:
        return re.sub(other, "_", option).lower() if other else option.lower()

    written: Any = data
    for part in place:
        written = written.get(part) if isinstance(written, dict) else None
    known = [*(written if isinstance(written, dict) else ()), *sorted(ALLOWED_OPTIONS.get(place, ()))]
    spelt = next((option for option in known if folded(option) == folded(name)), None)
    # Variables are usually all capitals; in a name that has lower-case letters, capitals are deliberate.
    own = name.lower() if name.isupper() else name
    return spelt or (own.replace("_", ".") if dots else own)


def _value(text: str, kind: Kind) -> Any:
    if kind in {Kind.OPTIONS, Kind.TEXTS}:
        return text
    if kind is not Kind.TEXT:
        return yaml.safe_load(text)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return text
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return None
    quoted = isinstance(node, yaml.ScalarNode) and node.style in {"'", '"'}
    return node.value if quoted else text


def _unknown(name: str) -> Refused:
    near = nearest(name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in variables()])
    hint = (
        f"; did you mean {PREFIX}{near}?"
        if near
        else "; a variable is TAILRACE_ and the path of a key, with __ between its levels"
    )
    return Refused(name, f"this variable matches no configuration key{hint}")
