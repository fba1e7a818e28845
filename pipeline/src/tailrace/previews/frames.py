"""A preview as pandas DataFrames, and as HTML for a notebook. pandas is imported only here."""

from __future__ import annotations

import html as markup
from typing import Any

import pandas as pd

from tailrace.previews.model import Headers, Place, Preview, Rejected, Written

_SOURCE = ("source_topic", "source_partition", "source_offset")
WRITTEN = (*_SOURCE, "topic", "partition", "key", "value", "headers", "timestamp")
REJECTED = (*_SOURCE, "stage", "reason", "detail", "key", "value", "headers")


def written(preview: Preview) -> pd.DataFrame:
    """Return a row for each record that would be written."""
    return _frame(WRITTEN, [(*_source(place), *_of_written(each)) for place, each in preview.all_written])


def rejected(preview: Preview) -> pd.DataFrame:
    """Return a row for each record that would be rejected or would stop the pipeline."""
    found = [(*_source(place or each.source), *_of_rejected(each)) for place, each in preview.all_rejected]
    for each in preview.raised:
        headers = _headers(each.source.headers)
        stopped = ("process", "would stop the pipeline", each.raised, _text(each.source.key), _text(each.source.value))
        found.append((*each.place, *stopped, headers))
    return _frame(REJECTED, found)


def html(preview: Preview) -> str:
    """Return the two tables side by side in reading order: what is written, then what is rejected."""
    lines = [preview.summary, *filter(None, [preview.unmatched, *preview.notes])]
    head = "".join(f"<p>{markup.escape(line)}</p>" for line in lines)
    parts = (("written", written(preview)), ("rejected", rejected(preview)))
    tables = "".join(f"<h4>{name}</h4>{table.to_html(index=False)}" for name, table in parts if len(table))
    return f"<div>{head}{tables}</div>"


def _frame(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    made = pd.DataFrame(rows, columns=list(columns), dtype=object)
    return made.astype({"source_partition": "Int64", "source_offset": "Int64"})


def _source(place: Place | None) -> tuple[str | None, int | None, int | None]:
    return place or (None, None, None)


def _of_written(record: Written) -> tuple[Any, ...]:
    moment = None if record.timestamp is None else pd.Timestamp(record.timestamp, unit="ms", tz="UTC")
    headers = _headers(record.headers)
    return record.topic, record.partition, _text(record.key), _text(record.value), headers, moment


def _of_rejected(record: Rejected) -> tuple[Any, ...]:
    headers = _headers(record.headers)
    return record.stage, record.reason, record.detail, _text(record.key), _text(record.value), headers


def _headers(headers: Headers) -> list[tuple[str, str | bytes | None]]:
    return [(name, _text(value)) for name, value in headers]


def _text(value: bytes | None) -> str | bytes | None:
    """Return bytes as text if they are."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
