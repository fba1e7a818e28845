"""Which headers a replay takes from a rejected record."""

from __future__ import annotations

import pytest

from tailrace.kafka.rejected_headers import before_rejection

STAGE = ("stage", "reason", "detail", "source.topic", "source.partition", "source.offset", "source.timestamp")
SINK = ("pipeline", "batch", "at")
JUDGED = ("reason", "stage", "detail", "sink.topic")


def headers(*names: str, by: bytes) -> list[tuple[str, bytes | None]]:
    """Return headers of these names, with the pipeline that has added them."""
    return [(f"tailrace.{name}", by) for name in names]


BY_STAGE, BY_SINK, BY_BOTH = (*STAGE, *SINK), (*SINK, *JUDGED), (*STAGE, "sink.topic", *SINK, *JUDGED)


# Nothing tells where the headers of one sink end and those of another begin.
@pytest.mark.parametrize(
    ("first", "last"),
    [
        *(((), each) for each in (BY_STAGE, BY_SINK, BY_BOTH)),
        *((BY_STAGE, each) for each in (BY_STAGE, BY_SINK, BY_BOTH)),
        *((BY_BOTH, each) for each in (BY_STAGE, BY_BOTH)),
    ],
)
def test_replayed_record_keeps_the_headers_of_an_earlier_rejection(
    first: tuple[str, ...], last: tuple[str, ...]
) -> None:
    """It was read from a topic of rejected records, and another pipeline or person may look for them there."""
    before: list[tuple[str, bytes | None]] = [("own", b"kept"), *headers(*first, by=b"first")]
    assert before_rejection([*before, *headers(*last, by=b"second")]) == before
