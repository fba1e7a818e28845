"""Hand-over between driver processes under a steady load: whichever is killed when, each record comes out once."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.drivers import Load, count, driver, events, kill_tree, written_file
from support.pipelines import Bench, events_of
from support.stopping import paused, resume, tree
from tailrace.admin.verify import Comparison, verify
from tailrace.config import Kafka
from tailrace.errors import DriverFenced
from tailrace.kafka.reader import Identity
from tailrace.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MakeBench = Callable[..., Bench]
LIMIT = 180.0
RATE = 200.0


class Running:
    """A driver process, with its reported events."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def reports(self, kind: str, times: int = 1) -> None:
        """Wait for this number of events of a kind."""

        def there() -> bool:
            assert self.process.poll() is None, self.log.with_suffix(".err").read_text()[-2000:]
            return count(self.log, kind) >= times

        wait_until(there, f"{times} events {kind!r} in {self.log.name}", LIMIT)

    def leaves(self) -> int:
        """Signal the driver to stop, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)


def proof(one: Bench) -> Comparison:
    """Compare what a plain consumer finds with the input."""
    return verify(Kafka(bootstrap_servers=one.kafka), one.source, one.sink, Identity.parse("key"))


@pytest.mark.long
def test_standby_takes_over_from_a_driver_that_shuts_down(bench: MakeBench) -> None:
    """The old driver gets SIGTERM; an older, killed standby delays the hand-over by its session timeout at most."""
    one = bench(partitions=2)
    file, ready = written_file(one), one.folder / "ready"
    more = ("--standby", "--ready-file", str(ready))
    logs = [one.folder / name for name in ("old", "dead", "new")]
    with Load(one.kafka, one.source, RATE) as load, driver(file, logs[0]) as first:
        old = Running(first, logs[0])
        old.reports("written")
        with driver(file, logs[1], "--standby") as second, driver(file, logs[2], *more) as third:
            dead, new = Running(second, logs[1]), Running(third, logs[2])
            dead.reports("standby")
            new.reports("standby")
            wait_until(ready.exists, "the ready file")
            kill_tree(second)
            old.reports("written", count(logs[0], "written") + 1)
            assert count(logs[2], "started") == 0
            assert old.leaves() == 0
            new.reports("written", 2)
            load.stop()
            new.reports("idle")
            assert ready.exists()
            assert new.leaves() == 0
            assert not ready.exists()
    (started,) = (each for each in events(logs[2]) if each["event"] == "started")
    assert started["batch"] == events(logs[0])[-1]["batch"] + 1
    found = proof(one)
    assert found.exact, found
    assert found.in_ == load.sent


@pytest.mark.slow
def test_paused_driver_finds_itself_fenced_when_it_resumes(bench: MakeBench) -> None:
    """It is paused in mid-batch; another start finishes that batch and goes on; each record comes out once."""
    one = bench(partitions=2)
    file, log = written_file(one), one.folder / "old"
    with Load(one.kafka, one.source, RATE) as load, driver(file, log) as process:
        old = Running(process, log)
        old.reports("written")
        old.reports("planned", count(log, "planned") + 1)
        with paused(tree(psutil.Process(process.pid))):
            one.run_until(one.pipeline(), lambda events: len(events_of(events, "written")) >= 3)
        assert process.wait(LIMIT) == DriverFenced.exit_code
        load.stop()
    assert DriverFenced.code in reported(log)
    one.run()
    found = proof(one)
    assert found.exact, found
    assert found.in_ == load.sent


def reported(log: Path) -> set[str]:
    """Return the codes of the errors that a driver has reported, on either stream."""
    lines = log.with_suffix(".err").read_text().splitlines()
    return {each.get("error", "") for each in events(log)} | {
        json.loads(line).get("error", "") for line in lines if line.startswith("{")
    }


@pytest.mark.long
def test_standbys_take_over_from_a_paused_driver_and_from_a_killed_one(bench: MakeBench) -> None:
    """The driver is paused in mid-batch, its successor killed right after it took over; a second standby continues.

    When the first one resumes, the markers have advanced: that is the other driver's work, and not a conflict.
    """
    one = bench(partitions=2)
    file = written_file(one)
    logs = [one.folder / name for name in ("old", "next", "last")]
    with Load(one.kafka, one.source, RATE) as load, driver(file, logs[0]) as first:
        old = Running(first, logs[0])
        old.reports("written")
        with driver(file, logs[1], "--standby") as second, driver(file, logs[2], "--standby") as third:
            standbys = [Running(second, logs[1]), Running(third, logs[2])]
            for each in standbys:
                each.reports("standby")
            old.reports("planned", count(logs[0], "planned") + 1)
            with paused(tree(psutil.Process(first.pid))):
                wait_until(
                    lambda: any(count(each.log, "started") for each in standbys),
                    "a standby that takes over",
                    LIMIT,
                )
                heir, other = sorted(standbys, key=lambda each: -count(each.log, "started"))
                assert count(other.log, "started") == 0
                kill_tree(heir.process)
                other.reports("started")
                other.reports("written", 3)
                resume(tree(psutil.Process(first.pid)))
                assert first.wait(LIMIT) == DriverFenced.exit_code
            load.stop()
            other.reports("idle")
            assert other.leaves() == 0
    assert DriverFenced.code in reported(logs[0])
    found = proof(one)
    assert found.exact, found
    assert found.in_ == load.sent
