"""The names of the headers that Tailrace adds to a rejected record, defined once for writers and readers.

The stages write them through Spark; the command line and the verifier read them without it. So the names are
defined here, apart from `tailrace.stages.rows`, and this module imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

PREFIX = "tailrace."

# Why it was rejected, and in which stage.
HEADER_REASON = "tailrace.reason"
HEADER_DETAIL = "tailrace.detail"
HEADER_STAGE = "tailrace.stage"
# Where the record came from.
HEADER_TOPIC = "tailrace.source.topic"
HEADER_PARTITION = "tailrace.source.partition"
HEADER_OFFSET = "tailrace.source.offset"
HEADER_TIMESTAMP = "tailrace.source.timestamp"
# The intended topic of a row that could not be encoded.
HEADER_SINK_TOPIC = "tailrace.sink.topic"
# The sink adds these, which only it knows.
HEADER_PIPELINE = "tailrace.pipeline"
HEADER_BATCH = "tailrace.batch"
HEADER_AT = "tailrace.at"

_ONCE = frozenset({HEADER_PIPELINE, HEADER_BATCH, HEADER_AT})  # a sink that finds a reason itself repeats others

# The reason of a row whose header the producer would write with a truncated key.
NUL_IN_HEADER = "header key with NUL"
# The reason of a row with bytes in place of a header key's text.
NOT_UTF8_IN_HEADER = "header key not utf-8"

# A detail is truncated to this many characters: it is a hint to a reader, not a log.
DETAIL_LENGTH = 1000


def before_rejection(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers that a record had in its source, without those of its last rejection.

    It may have come from a topic of rejected records itself, with the headers of that rejection, which stay. Each
    rejection adds its headers at the end: those of the stage, which it begins with, then those of the sink.
    """
    kept = list(headers)
    last: set[str] = set()
    while kept and (name := kept[-1][0]).startswith(PREFIX) and name not in last & _ONCE:
        last.add(name)
        kept.pop()
        if name == HEADER_STAGE and last >= _ONCE:
            break
    return kept
