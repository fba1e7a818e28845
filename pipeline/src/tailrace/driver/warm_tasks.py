"""What a warm-up runs in the workers: they import what a writing task imports, and reach the gateway.

Executors have this room, but not the one that starts a driver, so what they unpickle must be here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.gateway import connect

if TYPE_CHECKING:
    import pyarrow as pa

_HOLD = 0.2  # seconds that a warming task keeps its worker, so that each slot gets one of its own


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consume everything and yield nothing."""
    connect()
    for _ in batches:
        pass
    return iter(())


def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep a worker for a moment, then do the same."""
    time.sleep(_HOLD)
    return drain(batches)
