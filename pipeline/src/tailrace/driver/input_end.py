"""Whether a task's input has come to its end, or was cut off.

PySpark's workers take a closed socket between two Arrow batches for the end of the data. When Spark's side of a task
fails or is killed, a sink would so commit a part of its rows, with a marker that says that all are written. Spark ends
a whole input with a word of its own; here it is looked for, and without it nothing is committed.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from typing import IO, Any

from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from tailrace.errors import InputCutOff

END_OF_STREAM = struct.pack(">i", -4)  # pyspark.serializers.SpecialLengths

_input = threading.local()


def ends_whole(stream: Any) -> bool:
    """Whether the word that ends a whole input comes next; waits for it, and takes nothing."""
    reader = stream if hasattr(stream, "peek") else getattr(stream, "reader", None)
    if reader is None or not hasattr(reader, "peek"):
        return False
    found = bytes(reader.peek(len(END_OF_STREAM)))[: len(END_OF_STREAM)]
    return bool(found) and END_OF_STREAM.startswith(found)


def _watch() -> None:
    """From here on, every Arrow input that this process reads tells whether it was whole."""
    original = ArrowStreamSerializer.load_stream

    def load_stream(self: ArrowStreamSerializer, stream: IO[bytes]) -> Iterator[Any]:
        _input.whole = False
        yield from original(self, stream)
        _input.whole = ends_whole(stream)

    ArrowStreamSerializer.load_stream = load_stream  # type: ignore[method-assign]


# A worker imports this module while it unpickles the sink, before it begins to read the task's input.
_watch()


def whole(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches; an error where they end without having come to their end."""
    yield from batches
    if not getattr(_input, "whole", False):
        raise InputCutOff(
            "the input of a sink partition ended before its end: Spark gave the task up",
            kept="its transaction was aborted; nothing of this attempt is visible to a read_committed reader",
        )
