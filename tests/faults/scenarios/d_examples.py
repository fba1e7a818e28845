"""Kill the examples, a stateful one and one with Avro, using the demo's own supervisor, feed and proof."""

from __future__ import annotations

from functools import partial

from faults.scenario import Context, Result, Scenario
from tailrace.demo.batches import Row
from tailrace.demo.supervisor import DemoOptions, Supervisor


class _Watcher:
    """Pass on the demo's messages."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def says(self, text: str) -> None:
        """Log a line about what the demo does now."""
        self._context.say(text)

    def wrote(self, row: Row) -> None:
        """Ignore a written batch; there are many."""


def example(context: Context, name: str, fault: str) -> list[Result]:
    """Kill the complete process tree in mid-batch under a steady load."""
    options = DemoOptions(seconds=40, rate=2000, kills=4, seed=context.seed, example=name)
    found = Supervisor(options, _Watcher(context)).run()
    verdict = found.verdict
    context.say(verdict.line())
    for each in verdict.wrong:
        context.say(each)
    return [
        Result(
            fault,
            runs=found.kills,
            records=verdict.read,
            lost=verdict.lost,
            duplicated=verdict.duplicated + verdict.unexpected,
        )
    ]


SCENARIOS = tuple(
    Scenario(
        f"example-{name}",
        "Kills at random: the examples",
        "promised",
        partial(example, name=name, fault=fault),
        quick=False,
    )
    for name, fault in {
        "windowed-counts": "whole tree killed -9: windowed counts, with state",
        "tweets": "whole tree killed -9: tweets, Avro",
    }.items()
)
