"""The row in which a Spark task reports to the driver what was written.

It has a single column of bytes, because each task compiles the code that packs its rows.
"""

from __future__ import annotations

import pickle

import pyarrow as pa

from tailrace.errors import InvariantBroken
from tailrace.gateway import Written

RESULT = "written binary"
_RESULT = pa.schema([("written", pa.binary())])


def answer(written: Written) -> pa.RecordBatch:
    """Return what was written as a row for the driver."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(written)], pa.binary())], schema=_RESULT)


def written_of(row: bytes) -> Written:
    """Decode such a row."""
    found = pickle.loads(row)
    if not isinstance(found, Written):
        raise InvariantBroken(f"a task answered with {type(found).__name__}")
    return found
