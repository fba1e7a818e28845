"""Arrow arrays over numbers from librdkafka."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tailrace.gateway.memory import moments

MOST = (2**63 - 1) // 1000


def test_milliseconds_become_microseconds_or_null_where_there_are_none() -> None:
    """-1 stands for a record without a timestamp, and a product beyond 64 bits would be another time."""
    times = np.array([0, 1_700_000_000_123, MOST, -MOST, 1_700_000_000_000_000, -2], np.int64)
    found = moments(times)
    assert found.type == pa.timestamp("us", "UTC")
    assert (found.null_count, found.view(pa.int64()).to_pylist()) == (0, (times * 1000).tolist())
    odd = moments(np.array([-1, 5, MOST + 1, -MOST - 1, 2**63 - 1, -(2**63)], np.int64))
    assert odd.view(pa.int64()).to_pylist() == [None, 5000, None, None, None, None]
    odd.validate(full=True)


def test_no_milliseconds_become_an_empty_array() -> None:
    """A batch can be empty."""
    assert len(moments(np.array([], np.int64))) == 0
