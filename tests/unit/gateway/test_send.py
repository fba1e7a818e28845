"""What the sink does with a row that no stage has judged, as in `exactly_once`."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.errors import SinkColumnsInvalid
from tailrace.gateway import Assignment
from tailrace.gateway.schemas import ROW_SCHEMA
from tailrace.gateway.send import Counts, send
from tailrace.gateway.sender import Sender
from tailrace.progress.plan import BatchId, SinkPartition


class Kept:
    """A sender that keeps the records."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def require(self, topic: str, usual: str | None) -> None:
        """Accept each topic."""

    def poll(self) -> None:
        """Have nothing to report."""

    def send(self, **record: Any) -> None:
        """Keep it."""
        self.records.append(record)


def sent(headers: list[dict[str, Any]], rejected: str | None, **more: Any) -> tuple[list[dict[str, Any]], Counts]:
    """Send one row with these headers and columns; return the records and the counts."""
    task = Assignment(
        "p", BatchId(1), SinkPartition(0), 1, "", Delivery.EXACTLY_ONCE, "p.ledger", "out", rejected, "run"
    )
    row = {"value": b"v", "headers": headers, **more}
    batch = pa.RecordBatch.from_pylist([{**dict.fromkeys(ROW_SCHEMA.names), **row}], ROW_SCHEMA)
    sender = Kept()
    counts = send(cast(Sender, sender), task, iter([batch]))
    return sender.records, counts


def test_sink_rejects_a_header_key_with_nul() -> None:
    """The producer would cut it there; the rejected record shows the whole key as text."""
    [record], counts = sent([{"key": "a\0b", "value": b"1"}], "p.rejected")
    headers = dict(record["headers"])
    assert (record["topic"], counts.out, counts.rejected) == ("p.rejected", 0, 1)
    assert (headers["tailrace.reason"], headers["tailrace.stage"]) == (b"header key with NUL", b"sink")
    assert headers["a\\0b"] == b"1"


def test_sink_without_a_rejected_topic_ends_at_a_header_key_with_nul() -> None:
    """Nothing of the batch is delivered, and the error says what to change."""
    with pytest.raises(SinkColumnsInvalid, match="header key with NUL") as caught:
        sent([{"key": "a\0b", "value": b"1"}], None)
    assert "header keys in UTF-8 without NUL" in caught.value.then


@pytest.mark.parametrize("partition", [-1, -2])
def test_sink_rejects_a_negative_partition(partition: int) -> None:
    """No producer takes it, and the batch would be refused again and again for a topic that exists."""
    [record], counts = sent([], "p.rejected", partition=partition)
    headers = dict(record["headers"])
    assert (record["topic"], counts.out, counts.rejected) == ("p.rejected", 0, 1)
    assert headers["tailrace.reason"] == b"no such partition"
    assert headers["tailrace.detail"] == b"partition %d of the topic 'out'" % partition
