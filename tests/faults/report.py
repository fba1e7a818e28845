"""The table of a campaign: as text, in docs/guarantees.md between two markers, and as JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.campaign import Findings
from faults.scenario import Expect, Result

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
_COUNTS = ("runs", "records", "lost", "duplicated", "reordered", "torn")


def text(findings: Findings) -> str:
    """Return the complete report as Markdown, which also reads well in a terminal."""
    parts = [_sum(findings), _table(findings.ours, "fault")]
    native = [each for each in findings.results if each.native]
    if native:
        parts.append("The same faults, with Spark's own Kafka sink next to Tailrace:\n")
        parts.append(_compared(native, findings.ours))
    return "\n".join(parts)


def write(findings: Findings, page: Path, file: Path) -> None:
    """Write the table to the page, and all findings to the file."""
    old = page.read_text(encoding="utf-8")
    found = re.compile(f"{BEGIN}.*{END}", re.DOTALL)
    if not found.search(old):
        raise ValueError(f"{page} has no place between {BEGIN} and {END}")
    page.write_text(found.sub(lambda _: f"{BEGIN}\n\n{text(findings)}\n{END}", old), encoding="utf-8")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(as_data(findings), indent=1) + "\n", encoding="utf-8")


def as_data(findings: Findings) -> dict[str, object]:
    """Return the findings as JSON data."""
    return {
        "seed": findings.seed,
        "quick": findings.quick,
        "seconds": round(findings.seconds),
        "sittings": findings.sittings,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()},
        "runs": findings.runs,
        "records": findings.records,
        "broken": findings.failures,
        "results": [asdict(each) | {"seconds": round(each.seconds, 1)} for each in findings.results],
    }


def from_data(data: Mapping[str, Any]) -> Findings:
    """Restore the findings that `as_data` returned."""
    results = [Result(**{**row, "expect": Expect(row["expect"])}) for row in data["results"]]
    return Findings(
        data["seed"], data["quick"], results, dict(data["broken"]), data["seconds"], data.get("sittings", 1)
    )


def _sum(findings: Findings) -> str:
    exact = [each for each in findings.ours if each.expect is not Expect.FAULT]
    totals = ", ".join(
        f"{sum(getattr(each, name) for each in exact):,} {name}" for name in ("lost", "duplicated", "reordered", "torn")
    )
    sittings = f" in {findings.sittings} sittings" if findings.sittings > 1 else ""
    return (
        f"{findings.runs:,} fault runs over {findings.records:,} records: {totals}. "
        f"Seed {findings.seed}, {findings.seconds / 60:.0f} minutes on {os.cpu_count()} cores{sittings}"
        f"{', QUICK=1' if findings.quick else ''}.\n"
    )


def _table(results: Iterable[Result], first: str) -> str:
    lines = [f"| {first} | {' | '.join(_COUNTS)} | |", f"|---|{'---:|' * len(_COUNTS)}---|"]
    group = ""
    for each in results:
        if each.group != group:
            group = each.group
            lines.append(f"| **{group}** |{' |' * (len(_COUNTS) + 1)}")
        lines.append(f"| {each.fault} | {' | '.join(f'{getattr(each, name):,}' for name in _COUNTS)} | {_note(each)} |")
    return "\n".join(lines) + "\n"


def _note(result: Result) -> str:
    parts = [result.note] if result.note else []
    if result.expect is Expect.REFUSED:
        parts.append(f"refused {result.refused} times")
    if result.expect is Expect.FAULT:
        parts.append("control run, without the guard")
    if result.lingering:
        parts.append(f"{result.lingering} transactions left open")
    if result.ids:
        parts.append(f"{result.ids} surplus transactional ids")
    if not result.as_expected:
        parts.append("NOT AS EXPECTED")
    return "; ".join(parts)


def _compared(native: Iterable[Result], ours: Iterable[Result]) -> str:
    known = {each.fault: each for each in ours}
    shown = ("runs", "records", "lost", "duplicated", "reordered")
    sinks = " | ".join(f"{sink}: {shown[0]} | {' | '.join(shown[1:])}" for sink in ("Spark's sink", "Tailrace"))
    lines = [f"| fault | {sinks} |", f"|---|{'---:|' * 10}"]
    for each in native:
        same = known.get(each.fault)
        cells = [f"{getattr(one, name):,}" if one else "" for one in (each, same) for name in shown]
        lines.append(f"| {each.fault} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
