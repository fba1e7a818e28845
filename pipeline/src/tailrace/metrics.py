"""The names of what is counted, declared once.

The counters are named observations of Spark (`df.observe`): they appear in the query's progress and in Spark's UI.
"""

from __future__ import annotations

from typing import Final

READ: Final = "tailrace.read"
WRITTEN: Final = "tailrace.written"

CONSUMED: Final = "consumed"
SIZE: Final = "size"  # bytes of what was consumed, keys and values
PRODUCED: Final = "produced"
REJECTED: Final = "rejected"
