"""Run several scenarios in parallel, each in its own process with its own Kafka.

A scenario spends much of its time waiting: for a JVM, a session's end, a broker. Lanes are processes, not threads,
because a scenario may patch the process it runs in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.campaign import Findings, Say
from faults.report import as_data, from_data
from faults.scenario import Scenario

_STAMP = 9  # characters before the text in a line of the campaign's output


def _long(scenario: Scenario) -> tuple[int, bool, int]:
    return scenario.brokers, not scenario.quick, scenario.length


def in_lanes(scenarios: Sequence[Scenario], *, quick: bool, seed: int, say: Say, lanes: int) -> Findings:
    """Run all scenarios, `lanes` at a time; return their findings in the scenarios' order."""
    findings = Findings(seed, quick)
    began = time.monotonic()
    running: list[subprocess.Popen[str]] = []

    def one(scenario: Scenario) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tailrace-lane-") as folder:
            file = Path(folder) / "found.json"
            command = [sys.executable, "-m", "faults", "--lanes", "1", "--only", scenario.name, "--seed", str(seed)]
            command += ["--json", str(file), *(["--quick"] if quick else [])]
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            running.append(child)
            for line in child.stderr or ():
                say(f"{scenario.name:<16} {line.rstrip()[_STAMP:]}")
            code = child.wait()
            if not file.exists():
                broken = {scenario.name: f"its process ended with {code} without a report"}
                return as_data(Findings(seed, quick, failures=broken))
            return dict(json.loads(file.read_text(encoding="utf-8")))

    with ThreadPoolExecutor(lanes) as pool:
        asked = {each.name: pool.submit(one, each) for each in sorted(scenarios, key=_long, reverse=True)}
        try:
            reports = [asked[each.name].result() for each in scenarios]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in running:
                child.terminate()
            raise
    for each in reports:
        findings.failures |= each["broken"]
        findings.results += from_data(each).results
    findings.seconds = time.monotonic() - began
    return findings
