"""Text that is not UTF-8, as Spark makes it by a cast: its row is rejected, and the batch goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from tailrace.config import Delivery
from tailrace.gateway import Assignment
from tailrace.gateway.legible import legible
from tailrace.gateway.schemas import HEADERS, ROW_SCHEMA, completed
from tailrace.gateway.send import send
from tailrace.gateway.sender import Sender
from tailrace.progress.plan import BatchId, SinkPartition

TASK = Assignment(
    "p", BatchId(1), SinkPartition(0), 1, "", Delivery.EXACTLY_ONCE, "p.ledger", "out", "p.rejected", "run"
)


def text(*values: bytes | None) -> pa.Array:
    """Return bytes as Arrow's text, which nothing has looked at."""
    return pa.array(values, pa.binary()).view(pa.string())


def headers(*keys: bytes | None) -> pa.Array:
    """Return one header for each row."""
    pairs = pa.StructArray.from_arrays([text(*keys), pa.array([b"1"] * len(keys))], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(range(len(keys) + 1), pa.int32()), pairs, type=HEADERS)


def sent(**columns: pa.Array) -> list[dict[str, Any]]:
    """Send rows with these columns."""
    made = completed(pa.RecordBatch.from_pydict(columns))
    found: list[dict[str, Any]] = []
    sender = SimpleNamespace(require=lambda *given: None, poll=list, send=lambda **record: found.append(record))
    batch = legible(made)
    assert batch.schema == ROW_SCHEMA
    send(cast(Sender, sender), TASK, iter([batch]))
    return found


@pytest.mark.parametrize("offset", [0, 1])
def test_row_whose_topic_is_no_text_is_rejected_as_one_that_is_badly_named(offset: int) -> None:
    """Its neighbours go where they should."""
    topics = text(b"x", b"a", b"b\xff", None).slice(offset)
    *first, bad, last = sent(value=pa.array([b"1"] * len(topics)), topic=topics)
    assert [each["topic"] for each in first] == ["x", "a"][offset:]
    assert (bad["topic"], last["topic"]) == ("p.rejected", "out")
    why = dict(bad["headers"])
    assert (why["tailrace.reason"], why["tailrace.sink.topic"]) == (b"not a topic's name", b"b\\xff")


def test_row_whose_header_key_is_no_text_is_rejected_with_its_header() -> None:
    """The key is escaped; no producer could write it."""
    good, bad = sent(value=pa.array([b"1", b"2"]), headers=headers(b"k", b"\xffk"))
    assert (good["topic"], good["headers"]) == ("out", [("k", b"1")])
    why = dict(bad["headers"])
    assert (bad["topic"], bad["value"], why["\\xffk"]) == ("p.rejected", b"2", b"1")
    assert (why["tailrace.reason"], why["tailrace.stage"]) == (b"header key not utf-8", b"sink")


def test_rejected_row_keeps_its_reason_whatever_its_header_keys_are() -> None:
    """The stage that rejected it has said why."""
    [record] = sent(value=pa.array([b"1"]), headers=headers(b"\xff"), reason=pa.array(["not json"]))
    assert next(name for name, _ in record["headers"]) == "\\xff"
    assert "tailrace.reason" not in dict(record["headers"])  # the stage has added it as a header


def test_header_without_a_key_is_left_to_the_producer() -> None:
    """Nothing can be said of its text; the row before it is rejected."""
    batch = completed(pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2"]), "headers": headers(b"\xff", None)}))
    made = legible(batch)
    assert made.column("reason").to_pylist() == ["header key not utf-8", None]
    assert made.column("headers").to_pylist()[1] == [{"key": None, "value": b"1"}]


def test_rows_of_text_are_handed_on_as_they_are() -> None:
    """Nothing is copied."""
    batch = completed(pa.RecordBatch.from_pydict({"value": pa.array([b"1"]), "topic": pa.array(["a"])}))
    assert legible(batch) is batch
