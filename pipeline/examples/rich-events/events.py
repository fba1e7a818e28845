"""Adds each event's length and word count, and sends it to the topic for brief or for long events.

The function takes Arrow record batches and yields Arrow record batches, so its records never enter the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def enrich(batches: Iterator[pa.RecordBatch], brief: int) -> Iterator[pa.RecordBatch]:
    """Add the counts; events of at most `brief` words go to `rich-events.brief`, others to `.long`."""
    for events in batches:
        content = events.column("content")
        words = pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(content)))
        columns = {
            "key": events.column("id").cast(pa.string()),
            "topic": pc.if_else(pc.less_equal(words, brief), "rich-events.brief", "rich-events.long"),
            "id": events.column("id"),
            "content": content,
            "at": events.column("at"),
            "length": pc.utf8_length(content),
            "words": words,
        }
        yield pa.RecordBatch.from_pydict(columns)
