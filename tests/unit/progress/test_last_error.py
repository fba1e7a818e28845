"""The last error of a pipeline, as the text that Kafka keeps."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.errors import FunctionFailed
from tailrace.progress import ledger
from tailrace.progress.last_error import packed, unpacked
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import MAX_METADATA


def error(what: str) -> dict[str, object]:
    """Return an error with a run and a time."""
    return FunctionFailed(what, kept="the rest " * 9, then="look " * 9).as_dict() | {"run": "ab12", "at": 1.5}


def test_error_that_fits_is_kept_as_it_is() -> None:
    """All its parts come back."""
    lines = [(1.0, "note", "one"), (2.0, "warning", "é")]
    assert unpacked(packed(error("ValueError: é"), lines)) == error("ValueError: é") | {"log": lines}


@pytest.mark.parametrize("what", ["x" * 50_000, "é" * 50_000, "\n" * 50_000, "😀" * 50_000])
def test_long_error_is_shortened_to_what_the_brokers_accept(what: str) -> None:
    """The brokers limit the metadata of an offset, and would refuse a longer one; what to do next is kept."""
    text = packed(error(what))
    assert len(text.encode()) <= MAX_METADATA
    found = unpacked(text)
    assert found is not None
    assert found["what"].endswith("…")
    assert (found["error"], found["run"], found["at"], found["next"]) == ("TR-401", "ab12", 1.5, error("")["next"])


def test_half_a_character_is_replaced() -> None:
    """It may come out of a record's bytes, and must not hide the error that it is part of."""
    found = unpacked(packed(error("ValueError: \ud800")))
    assert found is not None
    assert found["what"] == "ValueError: ?"


def test_as_many_last_lines_of_the_log_are_kept_as_fit() -> None:
    """The newest say most about how the run ended."""
    lines = [(float(number), "note", "é" * 100) for number in range(60)]
    text = packed(error("ValueError"), lines)
    assert len(text.encode()) <= MAX_METADATA
    found = unpacked(text)
    assert found is not None
    assert 10 < len(found["log"]) < 60
    assert found["log"] == lines[-len(found["log"]) :]
    assert unpacked(packed(error("x" * 50_000), lines)) is not None


def test_lines_of_another_form_are_left_out() -> None:
    """Another version may write them differently, and its error is shown all the same."""
    text = json.dumps(error("x") | {"log": [[1, "note", "kept"], [1], "no", ["a", "b", "c"], None]})
    found = unpacked(text)
    assert found is not None
    assert found["log"] == [(1, "note", "kept")]


@pytest.mark.parametrize("text", [None, "", "no json", "[1]", "{}", json.dumps({"at": 1, "error": "TR-401"})])
def test_other_metadata_is_no_error(text: str | None) -> None:
    """Another version may have written something else: it is not shown, and breaks nothing."""
    assert unpacked(text) is None


def test_note_takes_its_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What adding the offset has taken is not left for the commit: the end of a run waits for both."""
    clock = [0.0]
    limits: list[float] = []

    def add(producer: object, places: object, group: object, limit: float, doing: str) -> None:
        clock[0] += 3.0

    monkeypatch.setattr(ledger, "add_offsets", add)
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    producer = SimpleNamespace(begin_transaction=lambda: None, commit_transaction=limits.append)
    reader = SimpleNamespace(consumer_group_metadata=lambda: None, close=lambda: None)
    made: Any = Ledger.__new__(Ledger)
    made._producer, made._lock, made._topic, made._name = producer, threading.Lock(), "notes", "orders"
    made._reader, made._asked = lambda group: reader, None
    for _ in range(2):
        made.note("group", "text", 5.0)
        clock[0] += 10.0
    assert limits == [2.0, 2.0]
