"""An editable driver starts again inside its container, which the kubelet would delay more with each broken edit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.helm import ROOT, named, render

LIMIT = 20.0
EDITABLE = {"pipelines": {"tweets": {"driver": {"editable": "/opt/pipeline"}}}}
# Stands in for the driver: it finishes a batch on SIGTERM, and fails at once while a file says so.
DRIVER = """#!/bin/sh
[ ! -f broken ] || { echo "start $*" >> log; exit 3; }
trap 'sleep 0.3; echo finished >> log; exit 0' TERM
echo "start $*" >> log
while :; do sleep 0.05; done
"""


def command() -> list[str]:
    """Return what the container runs, without tini."""
    [driver] = named(render("dev", EDITABLE), "Deployment", "t-tweets")["spec"]["template"]["spec"]["containers"]
    words: list[str] = driver["command"]
    assert words[:2] == ["/usr/bin/tini", "--"]
    return words[2:]


@pytest.fixture
def container(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the container's command with a driver that writes down what it does."""
    (tmp_path / "tailrace").write_text(DRIVER, encoding="utf-8")
    (tmp_path / "tailrace").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [*command(), "run", "a.yaml"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def until(done: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < end, f"waited {LIMIT:.0f} s for {what}"
        time.sleep(0.05)


def log(folder: Path) -> list[str]:
    """Return what the drivers did."""
    file = folder / "log"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def test_edit_starts_the_driver_again_after_its_batch(container: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """With the same arguments; SIGTERM ends both, as it does without the reload."""
    until(lambda: log(tmp_path) == ["start run a.yaml"], "the driver")
    container.send_signal(signal.SIGHUP)
    until(lambda: log(tmp_path) == ["start run a.yaml", "finished", "start run a.yaml"], "the driver's second start")
    container.send_signal(signal.SIGTERM)
    assert container.wait(LIMIT) == 0
    assert log(tmp_path) == ["start run a.yaml", "finished"] * 2


def test_edit_repairs_a_driver_that_another_edit_has_broken(container: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The container goes on without a driver, and says so."""
    until(lambda: log(tmp_path) == ["start run a.yaml"], "the driver")
    (tmp_path / "broken").touch()
    container.send_signal(signal.SIGHUP)
    assert container.stderr is not None
    assert b"ended with 3" in container.stderr.readline()
    assert container.poll() is None
    (tmp_path / "broken").unlink()
    container.send_signal(signal.SIGHUP)
    until(lambda: len(log(tmp_path)) == 4, "the repaired driver")
    container.send_signal(signal.SIGTERM)
    assert container.wait(LIMIT) == 0
    assert log(tmp_path) == ["start run a.yaml", "finished", "start run a.yaml", "start run a.yaml", "finished"]


def test_skaffold_sends_the_signal_that_the_container_expects() -> None:
    """And no probe ends a container whose driver waits for an edit."""
    config = yaml.safe_load((ROOT / "skaffold.yaml").read_text(encoding="utf-8"))
    [artifact] = [each for each in config["build"]["artifacts"] if "sync" in each]
    [hook] = artifact["sync"]["hooks"]["after"]
    assert hook["container"]["command"] == ["kill", "-HUP", "1"]
    assert "HUP" in " ".join(command())
    [driver] = named(render("dev", EDITABLE), "Deployment", "t-tweets")["spec"]["template"]["spec"]["containers"]
    assert not {"livenessProbe", "startupProbe"} & set(driver)
    [usual] = named(render("dev"), "Deployment", "t-tweets")["spec"]["template"]["spec"]["containers"]
    assert "command" not in usual
    assert {"livenessProbe", "startupProbe"} <= set(usual)
