"""Where an open batch begins: kept in Spark's checkpoint as the ledger has planned it.

Spark takes the beginning of batch N from the offset log entry of batch N-1, and that of the first batch from the
source's initial offsets. For a partition that these do not name, it takes the topic's beginning at the time, which
retention moves. Without initial offsets, it takes the latest ones.
"""

from __future__ import annotations

import json

from tailrace.progress.plan import BatchId, Place
from tailrace.progress.stream_plan import StreamPlan, offsets_json, offsets_of, replace_offsets

INITIAL = "sources/0/0"  # a query has one source, in however many places its plan reads it
_HEAD = "\0v1\n"  # how Spark begins a file of initial offsets


def told_by(batch: BatchId) -> str:
    """Return the name of the file from which Spark takes where a batch begins."""
    return f"offsets/{batch - 1}" if batch > 0 else INITIAL


def planned(plan: StreamPlan, entry: str) -> dict[Place, int]:
    """Return where the batch begins in each partition of its offset log entry."""
    begins = offsets_of(entry)  # where nothing is read
    for each in (*plan.ranges, *plan.reads):
        if each.place in begins:
            begins[each.place] = min(begins[each.place], each.start)
    return begins


def note_before(entry: str) -> str:
    """Return what Spark notes as done before it writes this offset log entry: the watermark of the next batch."""
    version, metadata, *_ = entry.strip().splitlines()
    return f'{version}\n{{"nextBatchWatermarkMs":{json.loads(metadata)["batchWatermarkMs"]}}}'


def named(text: str) -> dict[Place, int]:
    """Return the offsets in a file of initial offsets; an empty text is a missing file."""
    return offsets_of("\n".join(["v1", "{}", text.removeprefix(_HEAD)])) if text else {}


def completed(text: str, begins: dict[Place, int]) -> str:
    """Return such a file's text with the partitions that it does not name; an empty text is a missing file."""
    if text and not text.startswith(_HEAD):
        known = offsets_of(text)
        return text if begins.keys() <= known.keys() else replace_offsets(text, begins | known)
    known = named(text)
    return text if text and begins.keys() <= known.keys() else _HEAD + offsets_json(begins | known)
