"""Settings that name something that comes with Tailrace, or a class of the user's as `package.module:Class`.

An own format or an own store of the offsets needs no registration: its class is named where it is used.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from pydantic import JsonValue

from tailrace.errors import ConfigInvalid

_REFERENCE = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"


def known_or_class(text: str, known: Iterable[str]) -> str:
    """Return the text if it is a known name or a reference; raise ValueError for anything else."""
    names = list(known)
    if text not in names and not re.fullmatch(_REFERENCE, text):
        near = difflib.get_close_matches(text.lower(), names, n=1)
        hint = f"; did you mean {str(near[0])!r}?" if near else ""
        raise ValueError(f"{text!r} is not {', '.join(names)} or package.module:Class{hint}")
    return text


def known_or_class_pattern(known: Iterable[str]) -> dict[str, JsonValue]:
    """Return the same rule for JSON Schema."""
    return {"pattern": rf"^({'|'.join(known)}|{_REFERENCE})$"}


def load(setting: str, reference: str, base: type | None = None) -> Any:
    """Import the class that a setting names; raise ConfigInvalid if there is none, or none with this base."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # the module is the user's, and may raise anything
        why = f"{type(error).__name__}: {error}"
    else:
        if base is None or (isinstance(found, type) and issubclass(found, base)):
            return found
        why = f"it is no subclass of {base.__module__}.{base.__qualname__}"
    raise ConfigInvalid(
        f"{setting} {reference!r} cannot be loaded: {why}",
        kept="nothing was read or written",
        then="name a class on the Python path, as package.module:Class",
    )
