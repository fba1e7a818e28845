"""One part of a batch without the JVM: its records go through the stages and become rows for the gateway.

Outputs and rejected records leave in one stream, so both are in one transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.stages.arrow_stages import ArrowStages
from tailrace.stages.rules import Judged


class _Accepted:
    """The accepted rows. The function gets this and not a generator, because a generator can be closed half-way."""

    def __init__(
        self, stages: ArrowStages, records: Iterator[Any], aside: deque[Any], judged: Callable[[Judged], object]
    ) -> None:
        self._stages = stages
        self._records = records
        self._aside = aside
        self._judged = judged

    def __iter__(self) -> _Accepted:
        return self

    def __next__(self) -> Any:
        good, rejected, judged = self._stages.judge(next(self._records))
        self._judged(judged)
        if rejected is not None:
            self._aside.append(rejected)
        return good


def rows(stages: ArrowStages, records: Iterator[Any], judged: Callable[[Judged], object]) -> Iterator[Any]:
    """Yield the rows to write; read what the function left unread too, for the rejected records in it.

    `judged` gets the counts of the rules, some records at a time.
    """
    aside: deque[Any] = deque()
    accepted = _Accepted(stages, records, aside, judged)
    for out in stages.process(accepted):
        yield stages.encode(out)
        while aside:
            yield aside.popleft()
    for _ in accepted:
        while aside:
            yield aside.popleft()
    while aside:
        yield aside.popleft()
