"""Functions of librdkafka's C interface, with their types: what its queues and events need, how to make an
administration request, and how to bind others.

The library is the one that confluent-kafka links, found through its extension module. OSError or AttributeError mean
that it is not there, or lacks a function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, cimpl

POINTER: Final = ctypes.c_void_p
TEXT: Final = ctypes.c_char_p
NUMBER: Final = ctypes.c_int
SIZE: Final = ctypes.c_size_t
_GRACE = 1.0  # a request that expires answers a moment later
_REASON = 512


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


class Requests(Bindings):
    """What every administration request needs; a subclass adds the functions of one request."""

    def __init__(self) -> None:
        super().__init__()
        self.queue_new = self.free("queue_new", POINTER, POINTER)
        self.options_new = self.free("AdminOptions_new", POINTER, POINTER, NUMBER)
        self.options_limit = self.free("AdminOptions_set_request_timeout", NUMBER, POINTER, NUMBER, TEXT, SIZE)
        self.options_broker = self.free("AdminOptions_set_broker", NUMBER, POINTER, ctypes.c_int32, TEXT, SIZE)
        self.options_destroy = self.free("AdminOptions_destroy", None, POINTER)
        self.error_code = self.held("error_code", NUMBER, POINTER)

    def options(self, instance: int, kind: int, limit: float, made: ExitStack, broker: int | None = None) -> int:
        """Return the options of a request of this kind (rd_kafka_admin_op_t); they live as long as `made`.

        The request goes to the broker that is named, if one is.
        """
        options: int = self.options_new(instance, kind)
        made.callback(self.options_destroy, options)
        reason = ctypes.create_string_buffer(_REASON)
        code = self.options_limit(options, int(limit * 1000), reason, _REASON)
        if not code and broker is not None:
            code = self.options_broker(options, broker, reason, _REASON)
        if code:
            raise KafkaException(KafkaError(code, text(reason.value)))
        return options

    def answer(self, instance: int, limit: float, send: Callable[[int], object], absent: str, made: ExitStack) -> int:
        """Send a request to a queue, wait, and return its event, which lives as long as `made`.

        Raise what the brokers refuse, or that after the limit there is `absent`.
        """
        queue = self.queue_new(instance)
        made.callback(self.queue_destroy, queue)
        send(queue)
        event: int | None = self.queue_poll(queue, int((limit + _GRACE) * 1000))
        if not event:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{absent} within {limit:.0f} s"))
        made.callback(self.event_destroy, event)
        if code := self.event_error(event):
            raise KafkaException(KafkaError(code, text(self.event_error_string(event))))
        return event


def text(found: bytes | None) -> str:
    """Return a text of librdkafka's as Python's, empty if there is none."""
    return (found or b"").decode(errors="replace")


def _typed(library: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    function = getattr(library, f"rd_kafka_{name}")
    function.restype, function.argtypes = result, arguments
    return function
