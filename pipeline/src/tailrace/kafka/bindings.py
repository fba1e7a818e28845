"""Functions of librdkafka's C interface, with their types: what its queues and events need, and how to bind others.

The library is the one that confluent-kafka links, found through its extension module. OSError or AttributeError mean
that it is not there, or lacks a function.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from confluent_kafka import cimpl

POINTER: Final = ctypes.c_void_p
TEXT: Final = ctypes.c_char_p
NUMBER: Final = ctypes.c_int
SIZE: Final = ctypes.c_size_t


class Bindings:
    """The functions for queues and events; a subclass adds those of its own purpose."""

    def __init__(self) -> None:
        # `free` releases the GIL, for calls that may wait; `held` keeps it, for calls shorter than releasing it.
        self._free, self._held = ctypes.CDLL(cimpl.__file__), ctypes.PyDLL(cimpl.__file__)
        self.queue_poll = self.free("queue_poll", POINTER, POINTER, NUMBER)
        self.queue_destroy = self.free("queue_destroy", None, POINTER)
        self.event_error = self.held("event_error", NUMBER, POINTER)
        self.event_error_string = self.held("event_error_string", TEXT, POINTER)
        self.event_destroy = self.held("event_destroy", None, POINTER)

    def free(self, name: str, result: Any, *arguments: Any) -> Any:
        """Bind a function that may wait: other Python threads run meanwhile."""
        return _typed(self._free, name, result, arguments)

    def held(self, name: str, result: Any, *arguments: Any) -> Any:
        """Bind a function that returns at once."""
        return _typed(self._held, name, result, arguments)


def _typed(library: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    function = getattr(library, f"rd_kafka_{name}")
    function.restype, function.argtypes = result, arguments
    return function
