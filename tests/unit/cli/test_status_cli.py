"""`tailrace status`: how it finds the driver and shows the driver's status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.cli.status import duration, found, spans
from tailrace.config import Pipeline
from tailrace.errors import DriverUnreachable
from tailrace.gateway import Written
from tailrace.progress.plan import SinkPartition
from tailrace.status.board import Board
from tailrace.status.events import StandingBy, Started
from tailrace.status.port import opened
from tailrace.status.snapshots import Finished, LagSeen
from tailrace.telemetry.serving import Port

FIRST = 19760


def pipeline(name: str, port: int = FIRST) -> Pipeline:
    """Return a pipeline whose driver serves at this port, or at the next free one."""
    return Pipeline.model_validate(
        {
            "pipeline": name,
            "source": {"topics": ["in"]},
            "sink": {"topic": "out", "format": "raw"},
            "metrics": {"port": port},
        }
    )


def written(folder: Path, chosen: Pipeline, port: int) -> Path:
    """Write its configuration to a file."""
    data = chosen.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    file = folder / f"{chosen.pipeline}.yaml"
    file.write_text(json.dumps(data | {"metrics": {"port": port}}))
    return file


@pytest.fixture
def driver() -> Iterator[tuple[Port, Board]]:
    """Serve a driver's port, with a batch on its board."""
    chosen = pipeline("orders")
    board = Board(chosen, "run")
    board.heard(Started("p", "run", 0))
    place = ("in", 3)
    board.lag(LagSeen(board.status()["now"], {place: 100}, {place: 1340}, oldest=board.status()["now"] - 65))
    done = Written(SinkPartition(0), False, out=90, rejected=2, gateway="w1", address="127.0.0.1:9770")
    board.finished(Finished(41, 92, (done,), {"deliver": 0.25}, False, board.status()["now"]))
    with opened(chosen, board) as port:
        yield port, board


def run(*words: str) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["status", *words])


def test_a_driver_is_shown_as_text(driver: tuple[Port, Board]) -> None:
    """It shows phase, lag, batches, source partitions and gateways."""
    shown = run(f"http://127.0.0.1:{driver[0].number}/").stdout
    assert shown.startswith("orders: leading for")
    assert "lag: 1,240 records" in shown
    assert "last batch: 41" in shown
    assert "in-3" in shown
    assert "127.0.0.1:9770" in shown


def test_a_driver_is_shown_as_json(driver: tuple[Port, Board]) -> None:
    """It is one object, the same as /status."""
    status = json.loads(run(f"127.0.0.1:{driver[0].number}", "--output", "json").stdout)
    assert (status["pipeline"], status["batch"]["number"], status["lag"]["records"]) == ("orders", 41, 1240)


def test_a_driver_is_found_by_its_configuration(driver: tuple[Port, Board], tmp_path: Path) -> None:
    """This works even if another pipeline's driver has taken its port."""
    port = driver[0].number
    other = Board(pipeline("other"), "run")
    with opened(pipeline("other", port), other) as second:
        assert second.number > port
        assert found(str(written(tmp_path, pipeline("other"), port))) == f"http://127.0.0.1:{second.number}/"
        assert found(str(written(tmp_path, pipeline("orders"), port))) == f"http://127.0.0.1:{port}/"


def test_the_leading_driver_is_preferred(driver: tuple[Port, Board], tmp_path: Path) -> None:
    """A standby serves too, and may have the first port."""
    port, board = driver
    board.heard(StandingBy("p", "run", None, ()))
    leading = Board(pipeline("orders"), "other")
    leading.heard(Started("orders", "other", 0))
    with opened(pipeline("orders", port.number), leading) as second:
        assert found(str(written(tmp_path, pipeline("orders"), port.number))) == f"http://127.0.0.1:{second.number}/"


def test_a_missing_driver_is_an_error(tmp_path: Path) -> None:
    """The error says what to do instead."""
    with Port("127.0.0.1", 0, {}) as port:
        silent = run(f"http://127.0.0.1:{port.number}")
        assert isinstance(silent.exception, DriverUnreachable)
    gone = run(f"http://127.0.0.1:{port.number}")
    assert isinstance(gone.exception, DriverUnreachable)
    assert f"127.0.0.1:{port.number}" in gone.exception.what


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([4], "4"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")])
def test_sink_partitions_are_shown_as_spans(numbers: list[int], text: str) -> None:
    """A gateway may have a thousand of them."""
    assert spans(numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (119, "119.0 s"), (600, "10 min"), (7200, "2 h"), (864000, "10 days")]
)
def test_times_are_shown_in_a_readable_unit(seconds: float, text: str) -> None:
    """It is the largest unit of which there are at least two."""
    assert duration(seconds) == text
