"""The page of the soak test, made from its samples: docs/benchmarks/soak.md, its plot and soak.json.

`python -m bench.soak_report FOLDER` writes the page again from the folder's soak.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import slope
from bench.machine import table as machine_table
from bench.processes import KINDS
from bench.svg import chart
from bench.workloads import SOAK

KEPT = "soak.json"
WARM = 5  # the first fifth of the batches is warm-up and not in the slope
MB = 2**20
PAGE = """\
# Memory over {batches:,} batches

*`make bench-soak` writes this page and its plot; edit `tests/bench/soak_report.py`.*

{batches:,} batches of {per_batch} records in a row, on Tailrace's defaults apart from the size of the batch, in
{minutes:.0f} minutes. Afterwards every output record was read: none is missing, none repeated.

{table}

- *Memory* is the resident set (RSS), for Python workers the sum. They share pages with the process that forked them;
  these pages are counted for each worker.
- *Slope* comes from a least-squares line through the samples, without the first fifth of the batches, with its standard
  error. Neighbouring samples are alike, so the true error is larger.
- The resident set of a JVM grows until its heap has reached its limit, {heap} for both, with or without a leak. The
  memory in use after a full collection shows whether there is one:

{heaps}

- *CPU* is per batch, over the same part of the run.

![Memory by kind of process](soak-memory.svg)

{machine}

## Run it again

    make bench-soak

`python -m bench.soak --batches N` runs another number of batches. The samples are in [soak.json](soak.json);
`PYTHONPATH=tests python -m bench.soak_report docs/benchmarks` writes this page from them.
"""

Samples = dict[str, list[tuple[float, float]]]  # kind of process → batch and value


@dataclass
class Soaked:
    """The samples of a soak."""

    batches: int
    per_batch: int
    seconds: float
    memory: Samples  # bytes
    cpu: Samples  # seconds
    machine: dict[str, str] = field(default_factory=dict)
    live: Samples = field(default_factory=dict)  # bytes in the heaps, after a full collection

    def heaps(self) -> str:
        """Return a table with a line for each JVM: the live heap after each part of the batches."""
        looks = next(iter(self.live.values()), [])
        lines = [
            f"| MB in use after batch | {' | '.join(f'{batch:,.0f}' for batch, _ in looks)} |",
            "|" + "---|" * (len(looks) + 1),
        ]
        for kind, found in self.live.items():
            lines.append(f"| {KINDS[kind]} | {' | '.join(f'{size / MB:,.1f}' for _, size in found)} |")
        return "\n".join(lines)

    def table(self) -> str:
        """Return a table with a line for each kind of process that ran."""
        lines = [
            "| process | first, MB | last, MB | greatest, MB | slope, MB per 1,000 batches | CPU, ms |",
            "|---|---|---|---|---|---|",
        ]
        for kind, name in KINDS.items():
            warm = [each for each in self.memory.get(kind, []) if each[0] >= self.batches / WARM]
            if not warm or not any(value for _, value in warm):
                continue
            sizes = [value / MB for _, value in warm]
            fitted = slope([(batch / 1000, value / MB) for batch, value in warm])
            spent = [each for each in self.cpu[kind] if each[0] >= self.batches / WARM]
            each_batch = (spent[-1][1] - spent[0][1]) / max(1.0, spent[-1][0] - spent[0][0]) * 1000
            lines.append(
                f"| {name} | {sizes[0]:,.0f} | {sizes[-1]:,.0f} | {max(sizes):,.0f} | "
                f"{fitted.slope:+.2f} ± {fitted.error:.2f} | {each_batch:,.1f} |"
            )
        return "\n".join(lines)


def keep(folder: Path, soaked: Soaked) -> None:
    """Save the samples."""
    (folder / KEPT).write_text(json.dumps(dataclasses.asdict(soaked), indent=1) + "\n", encoding="utf-8")


def write(folder: Path, soaked: Soaked) -> None:
    """Write the page and its plot."""
    page = PAGE.format(
        batches=soaked.batches,
        per_batch=soaked.per_batch,
        minutes=soaked.seconds / 60,
        table=soaked.table(),
        heaps=soaked.heaps(),
        heap=SOAK.spark["spark.driver.memory"],
        machine=machine_table(soaked.machine),
    )
    (folder / "soak.md").write_text(page, encoding="utf-8")
    series = {
        KINDS[kind]: [(batch, value / MB) for batch, value in soaked.memory[kind]]
        for kind in KINDS
        if any(value for _, value in soaked.memory.get(kind, []))
    }
    (folder / "soak-memory.svg").write_text(chart("Resident memory, MB", "batch", series), encoding="utf-8")


def main(folder: Path) -> None:
    """Write the page again from the saved samples."""
    document = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    write(folder, Soaked(**document))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
