"""The status page in a real browser, fed by a board without a driver: the order of its answers, phone and keyboard."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.chromium import dom
from tailrace.config import Pipeline
from tailrace.errors import FunctionFailed
from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.board import Board
from tailrace.status.events import BatchPlanned, Changed, Noted, Ready, Started
from tailrace.status.port import page
from tailrace.status.snapshots import Finished, LagSeen
from tailrace.telemetry.serving import Answer, Port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PLACE = ("a-topic-with-quite-a-long-name-as-they-have-in-large-companies", 0)
HOSTILE = '<img src="https://example.org/x.png" onerror="document.title=1">'
# A page around the page, as wide as a phone: it uses it, and reports what it found in its own body.
FRAME = """<!doctype html><body><iframe id="f" width="390" height="900" src="page#15m"></iframe><script>
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
  const frame = document.getElementById("f");
  while (!(frame.contentDocument.body || {dataset: {}}).dataset.shown) await pause(50);
  const inner = frame.contentDocument, at = (id) => inner.getElementById(id), found = {};
  found.wide = inner.documentElement.scrollWidth;
  found.title = inner.title;
  found.range = inner.querySelector("#range :checked").value;
  found.chart = at("records-title").textContent;
  const all = inner.querySelectorAll("a[href], button, input, summary, [tabindex]");
  found.focusable = [...all].map((one) => one.tagName);
  const hour = inner.querySelector('#range input[value="24h"]');
  hour.click();
  hour.focus();
  inner.querySelector("details").open = true;
  await pause(4500);
  found.later = at("records-title").textContent;
  found.hash = frame.contentWindow.location.hash;
  found.focus = inner.activeElement.value;
  found.open = inner.querySelector("details").open;
  found.requests = frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name);
  found.images = inner.querySelectorAll("img").length;
  document.body.textContent = "FOUND " + JSON.stringify(found) + " END";
})();
</script>"""


@contextmanager
def served(board: Board) -> Iterator[str]:
    """Serve the page of a board, and a frame around it; the real page may not be framed."""
    pages = {
        "/": page,
        "/page": lambda: Answer(page().body, page().kind),
        "/frame": lambda: Answer(FRAME.encode(), "text/html; charset=utf-8"),
        "/status": lambda: Answer.json(board.status()),
        "/history": lambda: Answer.json(board.history()),
    }
    with Port("127.0.0.1", 0, pages) as port:
        yield f"http://{port.address}/"


@pytest.fixture
def board() -> Board:
    """Return the board of a driver whose batches take their records, of which a second arrive as many."""
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "orders",
            "source": {"topics": [PLACE[0]]},
            "sink": {"topic": "out", "format": "raw"},
            "metrics": {"runbooks": "https://docs.example.org/runbooks/"},
        }
    )
    board, now = Board(pipeline, "ab12"), time.time()
    board.heard(Started("orders", "ab12", 7))
    board.heard(Changed("the function has changed since batch 6"))
    board.heard(Ready("orders", "ab12"))
    error = FunctionFailed(f"ValueError: {HOSTILE}", kept="what was delivered", then="tailrace doctor FILE")
    board.failed(error.as_dict() | {"run": "before", "at": now - 900})
    for number in range(7, 12):
        done = Written(SinkPartition(0), False, out=90, rejected=2, gateway="w1", reasons={HOSTILE: 2})
        board.finished(Finished(number, 92, (done,), {"deliver": 0.25}, False, now - 60 + number, 50_000))
    for second in range(11):
        at = now - 11 + second
        board.lag(LagSeen(at, {PLACE: 3_000 * second}, {PLACE: 90_000 + 1_000 * second}, oldest=at - 300))
    return board


def text_of(elements: str) -> str:
    """Return the text that a reader sees."""
    body = re.sub(r"<script>.*?</script>|<style>.*?</style>", " ", elements, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


def test_page_answers_in_the_order_of_the_questions_at_night(board: Board, tmp_path: Path) -> None:
    """Is it well, since when not, what is behind and how long, the last error and the next command, the last change."""
    with served(board) as url:
        elements = dom(tmp_path, url)
    text = text_of(elements)
    asked = [
        "Behind since ",
        "70,000 records wait, the oldest for 5 min",
        "It catches up: 3,000 records are read a second, 1,000 arrive",
        "Caught up in about 35 s",
        "lag-growing",
        "Last error, at ",
        "TR-401 function failed",
        "Kept safe: what was delivered",
        "Next: tailrace doctor FILE",
        "What TR-401 means",
        "What changed last",
        "the function has changed since batch 6",
        "Records of each batch",
        "A full bar is one batch: 50,000 records.",
        "Last batches",
        "Log of this driver",
    ]
    places = [text.find(each) for each in asked]
    assert -1 not in places, [each for each, place in zip(asked, places, strict=True) if place < 0]
    assert places == sorted(places)
    assert 'href="https://docs.example.org/runbooks/lag-growing.md"' in elements


def test_page_says_that_faulty_records_are_looked_for(board: Board, tmp_path: Path) -> None:
    """It asks for patience, and hides no lag."""
    with mock.patch.object(board, "_clock", return_value=time.time() - 20):
        board.heard(BatchPlanned(12, 1_000, 1, replay=False))
        board.heard(Noted(f"batch 12: ValueError: {HOSTILE}; looking for the records, for up to 300 s"))
    with served(board) as url:
        text = text_of(dom(tmp_path, url))
    asked = [
        "Looking for faulty records since ",
        "Batch 12 failed: ValueError: ",
        "Next: nothing for now",
        "Last error, at ",
    ]
    places = [text.find(each) for each in asked]
    assert -1 not in places, text[:2_000]
    assert places == sorted(places)


def test_page_fits_a_phone_keeps_the_focus_and_asks_nobody_else(board: Board, tmp_path: Path) -> None:
    """A refresh neither closes what was opened nor moves the focus, and a record's text stays text."""
    with served(board) as url:
        elements = dom(tmp_path, f"{url}frame")
    reported = re.search(r"FOUND (.*) END", html.unescape(elements))
    assert reported is not None, elements[-2000:]
    found: dict[str, Any] = json.loads(reported[1])
    assert found["wide"] <= 390
    assert found["title"] == "Behind: orders – tailrace"
    assert (found["range"], found["chart"]) == ("15m", "Records in each 10 s")
    assert (found["hash"], found["later"]) == ("#24h", "Records in each 5 min")
    assert (found["focus"], found["open"]) == ("24h", True)
    assert set(found["focusable"]) == {"A", "DIV", "INPUT", "SUMMARY"}
    assert found["images"] == 0
    assert found["requests"]
    assert all(each.startswith(url) for each in found["requests"])


def test_page_of_a_driver_that_starts_says_what_it_is_doing(board: Board, tmp_path: Path) -> None:
    """Nothing is known yet of batches and lag, and nothing of it is missing on the page."""
    with served(Board(board.pipeline, "cd34")) as url:
        text = text_of(dom(tmp_path, url))
    for each in ("Starting since ", "asks for the brokers and the topics", "The lag is not known yet", "None is known"):
        assert each in text


def test_page_says_when_the_driver_does_not_answer(tmp_path: Path) -> None:
    """It ended while the page was open, or its port is closed: the last state must not look like the present one."""
    pages = {"/": page, "/status": lambda: Answer.text("the driver is ending", 503)}
    with Port("127.0.0.1", 0, pages) as port:
        text = text_of(dom(tmp_path, f"http://{port.address}/"))
    assert "The driver does not answer" in text
