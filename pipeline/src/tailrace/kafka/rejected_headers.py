"""The names of the headers that Tailrace adds to a rejected record, defined once for writers and readers.

The stages write them through Spark; the command line and the verifier read them without it. So the names are
defined here, apart from `tailrace.stages.rows`, and this module imports nothing.
"""

from __future__ import annotations

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

# The reason of a row whose header the producer would write with a truncated key.
NUL_IN_HEADER = "header key with NUL"

# A detail is truncated to this many characters: it is a hint to a reader, not a log.
DETAIL_LENGTH = 1000
