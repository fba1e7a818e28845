"""The campaign's command line: `make faults`, `make faults QUICK=1`, `make faults ONLY=NAME[,NAME]`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from faults import report
from faults.campaign import campaign
from faults.lanes import in_lanes
from faults.scenario import every
from support import archive

PAGE = Path("docs", "guarantees.md")
FILE = Path("docs", "benchmarks", "faults.json")


def main(arguments: Sequence[str]) -> int:
    """Run the chosen scenarios; return 0 if every result is as expected."""
    parser = argparse.ArgumentParser(prog="faults", description="Break every part of Tailrace, and count.")
    parser.add_argument("--quick", action="store_true", help="every crash point once, in minutes")
    parser.add_argument("--only", default="", help="names of scenarios, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2, help="number of scenarios that run at the same time")
    parser.add_argument("--resume", type=Path, help="resume a campaign from the file that --json or --write wrote")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE} and {FILE}")
    chosen = parser.parse_args(arguments)
    known = every()
    if chosen.list:
        for each in known:
            sys.stdout.write(f"{each.name:<24}{each.group}{'' if each.quick else ' (not in QUICK)'}\n")
        return 0
    wanted = [name for name in chosen.only.split(",") if name]
    unknown = sorted(set(wanted) - {each.name for each in known})
    if unknown:
        parser.error(f"no scenario is called {', '.join(unknown)}; --list lists them")
    scenarios = [each for each in known if each.name in wanted or (not wanted and (each.quick or not chosen.quick))]
    before = report.from_data(json.loads(chosen.resume.read_text(encoding="utf-8"))) if chosen.resume else None
    if before is not None:
        before = before.without(wanted)
        finished = {each.scenario for each in before.results}
        scenarios = [each for each in scenarios if each.name not in finished]
    archive.use()
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:7.1f}  {text}\n")

    if chosen.lanes > 1 and len(scenarios) > 1:
        findings = in_lanes(scenarios, quick=chosen.quick, seed=chosen.seed, say=say, lanes=chosen.lanes)
    else:
        findings = campaign(scenarios, quick=chosen.quick, seed=chosen.seed, say=say)
    if before is not None:
        findings = before.and_then(findings, [each.name for each in known])
    sys.stdout.write(report.text(findings))
    if chosen.json:
        chosen.json.write_text(json.dumps(report.as_data(findings)), encoding="utf-8")
    if chosen.write and (before is not None or not wanted):
        root = Path(__file__).parents[2]
        report.write(findings, root / PAGE, root / FILE)
    for name, why in findings.failures.items():
        sys.stdout.write(f"the scenario {name} broke: {why}\n")
    return 0 if findings.good else 1


if __name__ == "__main__":
    # Ending the campaign must also end what it started: drivers, gateways, brokers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
