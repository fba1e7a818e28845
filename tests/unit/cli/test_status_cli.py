"""`tailrace status`: how it finds the driver and shows the driver's status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from tailrace.cli import driver_address
from tailrace.cli.driver_address import again, clock
from tailrace.cli.main import app
from tailrace.cli.status import blocks, changes, spans
from tailrace.config import Pipeline
from tailrace.errors import BrokerUnreachable, DriverUnreachable
from tailrace.gateway import Written
from tailrace.progress.lease import Holder
from tailrace.progress.lease import Phase as Leading
from tailrace.progress.plan import SinkPartition
from tailrace.status.board import Board
from tailrace.status.events import BatchPlanned, Noted, Ready, StandingBy, Started, Stopped
from tailrace.status.health import duration
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
    board.heard(Ready("p", "run"))
    place = ("in", 3)
    board.lag(LagSeen(board.status()["now"], {place: 100}, {place: 1340}, oldest=board.status()["now"] - 65))
    done = Written(SinkPartition(0), False, out=90, rejected=2, gateway="w1", address="127.0.0.1:9770")
    board.finished(Finished(41, 92, (done,), {"deliver": 0.25}, False, board.status()["now"]))
    with opened(chosen, board) as port:
        yield port, board


def found(where: str | None) -> str:
    """Return the address that is found."""
    return driver_address.found(where).url


def run(*words: str) -> Any:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["status", *words])


def test_a_driver_is_shown_as_text(driver: tuple[Port, Board]) -> None:
    """It shows phase, lag, batches, source partitions and gateways."""
    shown = run(f"http://127.0.0.1:{driver[0].number}/").stdout
    assert shown.startswith("orders: BEHIND since ")
    assert "1,240 records wait, the oldest for 65.0 s" in shown
    assert "runbook" not in shown  # metrics.runbooks is empty, and an installed wheel has none
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
    other.heard(Started("other", "run", 0))
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


class Kafka:
    """Answers who leads a pipeline, in place of the brokers."""

    def __init__(self) -> None:
        self.holders: list[Holder] | None = None  # None: no broker answers
        self.error: dict[str, Any] | None = None

    def running(self, cluster: object, name: str) -> list[Holder]:
        """Return the drivers that the brokers list."""
        if self.holders is None:
            raise BrokerUnreachable("no broker answers")
        return self.holders


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """Replace the brokers' answers."""
    answers = Kafka()
    monkeypatch.setattr(driver_address, "running", answers.running)
    monkeypatch.setattr("tailrace.progress.last_error.read", lambda pipeline: answers.error)
    return answers


def test_driver_of_another_machine_is_found_where_kafka_says_that_it_leads(tmp_path: Path, kafka: Kafka) -> None:
    """Its run is compared: another pipeline's driver may have the same port there."""
    board = Board(pipeline("orders"), "ab12")
    board.heard(Started("orders", "ab12", 0))
    away = pipeline("orders").model_copy(update={"metrics": pipeline("orders").metrics.model_copy()})
    away.metrics.__dict__["host"] = "127.0.0.2"  # stands for another machine
    with opened(away, board) as port:
        file = written(tmp_path, pipeline("orders"), port.number)
        kafka.holders = [Holder("ab12", "127.0.0.2", 5.0, Leading.LEADING)]
        assert found(str(file)) == f"http://127.0.0.2:{port.number}/"
        kafka.holders = [Holder("cd34", "127.0.0.2", 5.0, Leading.LEADING)]
        with pytest.raises(DriverUnreachable) as refused:
            found(str(file))
    assert "run cd34 leads pipeline 'orders' on 127.0.0.2" in refused.value.what
    assert "kubectl port-forward" in refused.value.then


def test_driver_of_this_machine_that_was_killed_is_not_looked_for_elsewhere(tmp_path: Path, kafka: Kafka) -> None:
    """The brokers list it for a while; what helps is a start here, not another machine."""
    kafka.holders = [Holder("cd34", "127.0.0.1", 5.0, Leading.LEADING)]
    with pytest.raises(DriverUnreachable) as gone:
        found(str(written(tmp_path, pipeline("orders"), FIRST + 200)))
    assert "run cd34, which has led pipeline 'orders' on this machine since 1970-01-01" in gone.value.what
    assert f"does not answer at port {FIRST + 200}, nor at the 15 after it. If it was killed, Kafka" in gone.value.what
    assert gone.value.then.startswith("tailrace run FILE")


def test_pipeline_without_a_driver_says_how_the_last_one_ended(tmp_path: Path, kafka: Kafka) -> None:
    """Its error is kept in Kafka, and says what to do; without one, the pipeline can be started."""
    file = str(written(tmp_path, pipeline("orders"), FIRST + 200))
    kafka.holders = []
    with pytest.raises(DriverUnreachable) as none:
        found(file)
    assert (none.value.what, none.value.then) == ("no driver of pipeline 'orders' runs", "tailrace run FILE")
    kafka.error = {"error": "TR-401", "title": "function failed", "what": "x", "next": "look", "run": "ab", "at": 1.0}
    with pytest.raises(DriverUnreachable) as ended:
        found(file)
    assert "run ab ended at 1970-01-01" in ended.value.what
    assert "TR-401 function failed: x" in ended.value.what
    assert ended.value.then == "look"


def test_brokers_that_are_away_hide_no_driver_of_this_machine(
    driver: tuple[Port, Board], tmp_path: Path, kafka: Kafka
) -> None:
    """A standby here is shown; without one, the error names both that were asked."""
    port, board = driver
    board.heard(StandingBy("p", "run", None, ()))
    assert found(str(written(tmp_path, pipeline("orders"), port.number))) == f"http://127.0.0.1:{port.number}/"
    with pytest.raises(DriverUnreachable) as neither:
        found(str(written(tmp_path, pipeline("orders"), FIRST + 200)))
    assert "no broker answers" in neither.value.what


def test_pipeline_without_a_port_says_so(tmp_path: Path) -> None:
    """Nothing is searched for."""
    file = written(tmp_path, pipeline("orders"), FIRST)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"metrics": {"enabled": False}}))
    with pytest.raises(DriverUnreachable, match=re.escape("metrics.enabled is false")):
        found(str(file))


def test_watching_follows_the_driver_that_takes_over(driver: tuple[Port, Board], tmp_path: Path, kafka: Kafka) -> None:
    """The old one still answers while it ends."""
    port, board = driver
    file = str(written(tmp_path, pipeline("orders"), port.number))
    first = driver_address.found(file)
    assert again(first, file).url == first.url
    board.heard(Stopped("SIGTERM was received", 41))
    assert again(first, file).url == first.url  # nobody else answers
    successor = Board(pipeline("orders"), "next")
    successor.heard(Started("orders", "next", 42))
    with opened(pipeline("orders", port.number), successor) as second:
        assert again(first, file).url == f"http://127.0.0.1:{second.number}/"


def test_watching_in_a_pipe_writes_a_line_for_each_change() -> None:
    """A lag that moves is no change; a driver that does not answer is one."""

    def state(name: str, why: str) -> dict[str, Any]:
        health = {"state": name, "since": 10.0, "why": why}
        return {"pipeline": "orders", "now": 20.0, "health": health}

    gone = DriverUnreachable("no driver answers")
    seen: list[tuple[dict[str, Any], DriverUnreachable | None]] = [
        (state("well", "a"), None),
        (state("well", "b"), None),
        (state("behind", "c"), None),
    ]
    seen += [(state("behind", "c"), gone), (state("behind", "c"), gone), (state("behind", "c"), None)]
    words = [line.partition("orders: ")[2].split(" since")[0] for line in changes(seen)]
    assert words == ["WELL", "BEHIND", "no answer: no driver answers", "BEHIND"]


def test_driver_of_an_older_version_is_shown(driver: tuple[Port, Board]) -> None:
    """Its status has no health: the phase is shown instead, as during an upgrade."""
    state = {
        name: value
        for name, value in driver[1].status().items()
        if name not in {"health", "error", "change", "log", "speed", "runbooks"}
    }
    lines = [line for block in blocks(state) for line in block.lines]
    assert lines[0].startswith("orders: leading for ")
    assert any(line.startswith("lag: 1,240 records") for line in lines)


def test_next_command_names_the_file_that_was_given(driver: tuple[Port, Board], tmp_path: Path) -> None:
    """So that it can be copied as it is."""
    port, board = driver
    board.failed(
        {"error": "TR-401", "title": "function failed", "what": "x", "kept": "all", "next": "tailrace doctor FILE"}
        | {"run": "ab", "at": 5.0}
    )
    file = str(written(tmp_path, pipeline("orders"), port.number))
    shown = run(file, "--once").stdout
    assert f"next: tailrace doctor {file}" in shown
    assert f"last error: {clock(5.0)}, run ab, TR-401 function failed: x" in shown


def test_search_for_faulty_records_is_shown_with_nothing_to_do(driver: tuple[Port, Board], tmp_path: Path) -> None:
    """Records wait meanwhile, but more executors would not help."""
    port, board = driver
    now = board.status()["now"]
    with mock.patch.object(board, "_clock", return_value=now - 20):
        board.heard(BatchPlanned(42, 1240, 1, replay=False))
        board.heard(Noted("batch 42: ValueError: no; looking for the records, for up to 300 s"))
    file = written(tmp_path, pipeline("orders"), port.number)
    lines = run(str(file)).stdout.splitlines()
    assert lines[0].startswith("orders: SEARCHING since ")
    assert "Batch 42 failed: ValueError: no." in lines[0]
    assert lines[1].startswith("  next: nothing for now")
    assert f"tailrace preview {file}" in lines[1]


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
