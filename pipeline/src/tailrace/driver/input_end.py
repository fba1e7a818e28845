"""Whether a task's input is complete, or was cut off.

PySpark's workers take a closed socket between two Arrow batches for the end of the data. When Spark's side of a task
fails or is killed, a sink would commit a part of its rows, with a marker that says that all are written. Spark ends a
complete input with an end marker of its own (an int32 of -4). Without it, nothing is committed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tailrace.errors import InputCutOff

END_OF_STREAM = struct.pack(">i", -4)  # pyspark.serializers.SpecialLengths

_input = threading.local()


def ends_completely(stream: Any) -> bool:
    """Return whether the end marker comes next; wait for it, and consume nothing."""
    reader = stream if hasattr(stream, "peek") else getattr(stream, "reader", None)
    if reader is None or not hasattr(reader, "peek"):
        return False
    found = bytes(reader.peek(len(END_OF_STREAM)))[: len(END_OF_STREAM)]
    return bool(found) and END_OF_STREAM.startswith(found)


class InputEnd:
    """Refuses a task's input that was cut off; part of what is pickled for a task, as an attribute or in a closure.

    PySpark is changed in the worker alone, when this is unpickled there, which is before the worker begins to read. The
    process that has made it is left as it is.
    """

    def __reduce__(self) -> tuple[Callable[[], InputEnd], tuple[()]]:
        """Return what a worker calls to unpickle it."""
        return _in_a_worker, ()

    def complete(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; raise InputCutOff if the input was cut off, or if nothing has watched it."""
        yield from batches
        if not getattr(_input, "complete", False):
            raise InputCutOff(
                "the input of a sink partition was truncated: Spark gave the task up",
                kept="its transaction was aborted; nothing of this attempt is visible to a read_committed reader",
            )


def _in_a_worker() -> InputEnd:
    watch()
    return InputEnd()


def watch() -> None:
    """Make every Arrow input that this process reads from now on remember whether it was complete."""
    original = ArrowStreamSerializer.load_stream
    if getattr(original, "watched", False):
        return

    def load_stream(self: ArrowStreamSerializer, stream: IO[bytes]) -> Iterator[Any]:
        _input.complete = False
        yield from original(self, stream)
        _input.complete = ends_completely(stream)

    load_stream.watched = True  # type: ignore[attr-defined]
    ArrowStreamSerializer.load_stream = load_stream  # type: ignore[method-assign]
