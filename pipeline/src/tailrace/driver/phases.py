"""How long each step of a batch takes, by name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Phases:
    """The seconds of one batch, by step."""

    seconds: dict[str, float] = field(default_factory=dict)

    def begin(self, **spent: float) -> None:
        """Forget the previous batch; `spent` has the steps of the new one that are done."""
        self.seconds = dict(spent)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time inside to a step."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started
