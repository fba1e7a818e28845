"""The benchmark's figures: measurements of a run, ratios per round with their median, slopes with their error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.workloads import ARROW, NATIVE, TAILRACE


@dataclass
class Measured:
    """The measurements of one run of one side."""

    workload: str
    variant: str
    round: int
    values: dict[str, float]
    profile: dict[str, float]  # kind of process → CPU µs per record
    others: float = 0.0  # cores that other programs used
    curve: list[float] = field(default_factory=list)  # latency by percentile, or the time of each batch
    steps: dict[str, float] = field(default_factory=dict)  # of a batch, ms


@dataclass(frozen=True)
class Aim:
    """The bound that a ratio, Tailrace ÷ native, should meet."""

    workload: str
    value: str
    bound: float
    at_least: bool = False
    variant: str = TAILRACE

    def reached(self, ratio: float) -> bool:
        """Tell whether the ratio is within the aim."""
        return ratio >= self.bound if self.at_least else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"


AIMS: Mapping[str, Aim] = {
    "throughput_raw": Aim("raw", "rate", 1.1, at_least=True),
    "cpu_raw": Aim("raw", "cpu", 1.1),
    "throughput_json": Aim("json", "rate", 1.0, at_least=True),
    "cpu_json": Aim("json", "cpu", 1.2),
    "throughput_arrow": Aim("raw", "rate", 1.3, at_least=True, variant=ARROW),
    "cpu_arrow": Aim("raw", "cpu", 0.9, variant=ARROW),
    "p50_1k": Aim("latency_1k", "p50", 0.55),
    "p99_1k": Aim("latency_1k", "p99", 0.65),
    "p50_20k": Aim("latency_20k", "p50", 0.8),
    "p99_20k": Aim("latency_20k", "p99", 0.8),
    "batch_64": Aim("batch_64", "seconds", 0.5),
}


def by_round(found: Iterable[Measured], aim: Aim) -> list[float]:
    """Return the ratio of each round in which both sides were measured."""
    sides: dict[int, dict[str, float]] = {}
    for each in found:
        if each.workload == aim.workload and each.variant in (NATIVE, aim.variant):
            sides.setdefault(each.round, {})[each.variant] = each.values[aim.value]
    rounds = (sides[number] for number in sorted(sides))
    return [round_[aim.variant] / round_[NATIVE] for round_ in rounds if len(round_) == 2 and round_[NATIVE]]


def spreads(found: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the ratios per round by key, for the keys that were measured."""
    all_ = {key: by_round(found, aim) for key, aim in AIMS.items()}
    return {key: ratios for key, ratios in all_.items() if ratios}


def ratios(found: Sequence[Measured]) -> dict[str, float]:
    """Return the median ratio by key."""
    return {key: statistics.median(each) for key, each in spreads(found).items()}


def medians(found: Iterable[Measured], workload: str) -> dict[str, dict[str, float]]:
    """Return the median of each value over the rounds, by variant."""
    return _medians((each.variant, each.values) for each in found if each.workload == workload)


def profile(found: Iterable[Measured], workload: str) -> dict[str, dict[str, float]]:
    """Return the median CPU µs per record by variant and kind of process."""
    return _medians((each.variant, each.profile) for each in found if each.workload == workload)


def steps(found: Iterable[Measured], workload: str) -> dict[str, dict[str, float]]:
    """Return the median time of each step of a batch, by variant."""
    return _medians((each.variant, each.steps) for each in found if each.workload == workload)


def _medians(measured: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    runs: dict[str, dict[str, list[float]]] = {}
    for variant, values in measured:
        for name, value in values.items():
            runs.setdefault(variant, {}).setdefault(name, []).append(value)
    return {variant: {name: statistics.median(each) for name, each in run.items()} for variant, run in runs.items()}


def curves(found: Iterable[Measured], workload: str) -> dict[str, list[float]]:
    """Return the median curve over the rounds, point by point, by variant."""
    runs: dict[str, list[list[float]]] = {}
    for each in found:
        if each.workload == workload and each.curve:
            runs.setdefault(each.variant, []).append(each.curve)
    return {
        variant: [statistics.median(points) for points in zip(*each, strict=False)] for variant, each in runs.items()
    }


@dataclass(frozen=True)
class Slope:
    """A straight line through points, by least squares."""

    slope: float
    error: float  # the slope's standard error

    @property
    def significant(self) -> bool:
        """Tell whether the slope differs from zero by more than twice its error."""
        return abs(self.slope) > 2 * self.error


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Fit a line; with fewer than three points, or all at the same x, its slope is NaN."""
    count = len(points)
    mean_x, mean_y = (math.fsum(each[axis] for each in points) / max(1, count) for axis in (0, 1))
    width = math.fsum((x - mean_x) ** 2 for x, _ in points)
    if count < 3 or not width:
        return Slope(math.nan, math.nan)
    found = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / width
    residual = math.fsum((y - mean_y - found * (x - mean_x)) ** 2 for x, y in points)
    return Slope(found, math.sqrt(residual / (count - 2) / width))
