"""A pipeline of two topics, for tests in which one of them is taken out, hidden, deleted or created again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.pipelines import events_of
from support.threads import Line, deleted
from tailrace.testing import Record, produce


@dataclass(frozen=True)
class Two:
    """A pipeline that has read two topics, and may read one of them."""

    line: Line
    other: str

    @property
    def both(self) -> dict[str, Any]:
        """Return the section of a configuration that reads both."""
        return {"source": {"topics": [self.line.source, self.other]}}

    def send_other(self, *values: bytes) -> None:
        """Write records to the topic that is taken out."""
        produce(self.line.kafka, self.other, [Record(value) for value in values])

    def delete_other(self) -> None:
        """Delete the topic that is taken out."""
        deleted(self.line, self.other)

    def noted(self, events: list[dict[str, Any]]) -> list[str]:
        """Return what a run has noted about the topic."""
        return [each["what"] for each in events_of(events, "note") if self.other in each["what"]]
