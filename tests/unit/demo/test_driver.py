"""The demo reports why its driver ended, in the driver's own words if it left any."""

from __future__ import annotations

from pathlib import Path

from tailrace.demo.driver import Driver
from tailrace.errors import ConfigInvalid, QueryFailed

RUN = ["-m", "tailrace.cli.main", "run", "wrong.yaml", "--output", "json"]


def test_a_drivers_own_error_becomes_the_demos(tmp_path: Path) -> None:
    """`tailrace run` prints it as JSON; the code, what happened and what to do next are kept."""
    (tmp_path / "wrong.yaml").write_text("pipeline: x\nnonsense: 1\n", encoding="utf-8")
    driver = Driver(RUN, {}, tmp_path)
    failure = driver.failure()
    driver.end(0.0)
    assert isinstance(failure, ConfigInvalid)
    assert "nonsense: unknown key" in failure.what
    assert failure.kept == "nothing was read from or written to Kafka"
    assert failure.then.startswith("correct wrong.yaml")


def test_a_driver_without_an_error_is_shown_by_its_log(tmp_path: Path) -> None:
    """Half a line of an event does not count; the exit code and the end of the log are shown instead."""
    script = "import sys; print('{\"event\": \"wri', end=''); sys.stderr.write('out of luck\\n'); sys.exit(9)"
    driver = Driver(["-c", script], {}, tmp_path)
    failure = driver.failure()
    driver.end(0.0)
    assert isinstance(failure, QueryFailed)
    assert "exit code 9" in failure.what
    assert "out of luck" in failure.what
