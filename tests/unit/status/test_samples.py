"""Samples on the status page: what of a record is shown, and that there are none unless they are asked for."""

from __future__ import annotations

import http.client

import pytest

from tailrace.config import Pipeline
from tailrace.status.board import Board
from tailrace.status.port import opened
from tailrace.status.samples import HIDDEN, shown


@pytest.mark.parametrize(
    ("content", "hidden", "text"),
    [
        (None, (), None),
        (b"plain", (), "plain"),
        (b"\xff\x00a\n", (), "\\xff·a·"),
        (b'{"id": 1, "card": "4111"}', (), '{"id": 1, "card": "4111"}'),
        (b'{"id": 1, "card": "4111"}', ("card",), f'{{"id": 1, "card": "{HIDDEN}"}}'),
        (b'{"a": [{"card": {"n": 4111}}]}', ("card",), f'{{"a": [{{"card": "{HIDDEN}"}}]}}'),
        (b'[{"card": 1}]', ("card",), f'[{{"card": "{HIDDEN}"}}]'),
        (b"card=4111", ("card",), "9 bytes, hidden: not JSON with fields"),
        (b'"4111"', ("card",), "6 bytes, hidden: not JSON with fields"),
        (b'{"card": "4111"', ("card",), "15 bytes, hidden: not JSON with fields"),
        (b"[" * 100_000, ("card",), "100000 bytes, hidden: not JSON with fields"),
        (b"[" * 900 + b"]" * 900, ("card",), "1800 bytes, hidden: not JSON with fields"),
    ],
)
def test_hidden_fields_are_covered_wherever_they_are(content: bytes | None, hidden: tuple[str, ...], text: str) -> None:
    """What cannot be read as fields is hidden as a whole: it may contain them."""
    assert shown(content, hidden) == text


def test_long_value_is_cut() -> None:
    """The page shows what a record looks like, not all of it."""
    text = shown(b"x" * 5_000, ())
    assert text is not None
    assert len(text) == 300
    assert text.endswith("…")


def test_port_serves_no_samples_unless_they_are_configured() -> None:
    """Records may be sensitive, and the port asks nobody for a password."""
    given = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    answers = {}
    for count in (0, 5):
        pipeline = Pipeline.model_validate(given | {"metrics": {"port": 0, "samples": count}})
        with opened(pipeline, Board(pipeline, "run")) as port:
            answers[count] = asked(port.address)
    assert answers == {0: 404, 5: 200}


def asked(address: str) -> int:
    """Return the status code of /samples."""
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request("GET", "/samples")
        return connection.getresponse().status
    finally:
        connection.close()
