"""The fault campaign: run the scenarios one after another on shared embedded Kafkas, and collect their results."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from faults.scenario import Context, Result, Scenario
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

Say = Callable[[str], None]

# The oracle reads the coordinator's log, so it must not be compacted meanwhile. Fewer partitions are faster to read.
SETTINGS = {"transaction.state.log.num.partitions": "4", "log.cleaner.enable": "false"}
HEAP = "512m"


@dataclass
class Findings:
    """The results of a campaign."""

    seed: int
    quick: bool
    results: list[Result] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # scenarios that broke, and why
    seconds: float = 0.0
    sittings: int = 1  # a campaign in which a scenario broke can be resumed

    def without(self, scenarios: Sequence[str]) -> Findings:
        """Drop these scenarios, and all failures: a scenario that broke counts as not run."""
        results = [each for each in self.results if each.scenario not in scenarios]
        return replace(self, results=results, failures={})

    def and_then(self, more: Findings, order: Sequence[str]) -> Findings:
        """Add the findings of another sitting, in the order of the scenarios."""
        results = sorted([*self.results, *more.results], key=lambda each: order.index(each.scenario))
        return replace(
            self,
            results=results,
            failures=more.failures,
            seconds=self.seconds + more.seconds,
            sittings=self.sittings + 1,
        )

    @property
    def good(self) -> bool:
        """Whether no scenario broke and every result is as expected."""
        return bool(self.results) and not self.failures and all(each.as_expected for each in self.results)

    @property
    def ours(self) -> list[Result]:
        """Tailrace's own results."""
        return [each for each in self.results if not each.native]

    @property
    def runs(self) -> int:
        """The number of times a fault struck Tailrace."""
        return sum(each.runs for each in self.ours)

    @property
    def records(self) -> int:
        """The records of Tailrace's pipelines that were at stake, each counted once."""
        return sum(each.records - each.again for each in self.ours)


def campaign(scenarios: Sequence[Scenario], *, quick: bool, seed: int, say: Say) -> Findings:
    """Run all scenarios; if one breaks, the others still run."""
    findings = Findings(seed, quick)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-faults-"))
    try:
        for group in _grouped(scenarios):
            with ExitStack() as stack:
                options = EmbeddedOptions(
                    brokers=group[0].brokers, heap=HEAP, settings={**SETTINGS, **group[0].settings}
                )
                kafka = stack.enter_context(EmbeddedKafka(options))
                for scenario in group:
                    _one(scenario, kafka, folder / scenario.name, findings, say)
    finally:
        findings.seconds = time.monotonic() - began
        if findings.good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the logs of what failed are in {folder}")
    return findings


def _one(scenario: Scenario, kafka: EmbeddedKafka, folder: Path, findings: Findings, say: Say) -> None:
    folder.mkdir(parents=True)
    began = time.monotonic()
    say(f"{scenario.name}:")
    # A scenario's random choices depend only on its name and the seed, not on which scenarios run before it.
    seed = sum(scenario.name.encode()) * 1_000_003 + findings.seed
    context = Context(kafka, folder, seed, findings.quick, lambda text: say(f"  {text}"))
    try:
        results = [replace(each, seconds=0.0) for each in scenario.run(context)]
    except Exception as error:
        findings.failures[scenario.name] = f"{type(error).__name__}: {error}"
        say("  " + "  ".join(traceback.format_exc().splitlines(keepends=True)))
        return
    took = time.monotonic() - began
    findings.results += [replace(each, seconds=took / len(results)) for each in results]
    for each in results:
        say(f"  {'as expected' if each.as_expected else 'NOT AS EXPECTED'}: {line(each)}")
    say(f"  {took:.0f} s")


def line(result: Result) -> str:
    """Describe a result in one line."""
    text = f"{result.fault}: {result.runs} runs, {result.records} records"
    for name in ("lost", "duplicated", "reordered", "torn", "lingering", "ids", "refused"):
        count = getattr(result, name)
        text += f", {count} {name}" if count else ""
    return text + (f" ({result.note})" if result.note else "")


def _grouped(scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
    """Group the scenarios that share a Kafka, in the order of each group's first scenario."""
    groups: dict[object, list[Scenario]] = {}
    for each in scenarios:
        mark = each.name if each.alone else (each.brokers, tuple(sorted(each.settings.items())))
        groups.setdefault(mark, []).append(each)
    return list(groups.values())
