"""The librdkafka instance inside a client of confluent-kafka, for calls that confluent-kafka makes badly or not at all.

confluent-kafka does not give its handle out. It lies behind the header of the Python object in the versions listed
here; `handle` returns nothing for any other, and the caller then does without.
"""

from __future__ import annotations

import ctypes
import functools
from importlib.metadata import version
from typing import Any, Final

KNOWN: Final = frozenset({"2.16.1"})  # versions whose clients start with Python's object header, then the handle


@functools.cache
def known() -> bool:
    """Return whether the layout of this confluent-kafka's clients is known."""
    return version("confluent-kafka") in KNOWN and ctypes.sizeof(ctypes.c_void_p) == 8


def handle(client: Any) -> int | None:
    """Return a client's handle, None if this confluent-kafka is unknown; it is valid as long as the client exists."""
    if not known():
        return None
    return ctypes.c_void_p.from_address(id(client) + object.__basicsize__).value
