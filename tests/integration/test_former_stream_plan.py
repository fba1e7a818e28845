"""A stateless pipeline whose last batch Spark has planned: version 0.1 ran it, or it had a `checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.plans import leave_stream_plan
from support.threads import Line, recreated
from tailrace import errors
from tailrace.testing import Record, produce

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Former:
    """A pipeline that has read two topics up to the plan's ends."""

    line: Line
    other: str

    @property
    def both(self) -> dict[str, Any]:
        """Return the section of a configuration that reads both."""
        return {"source": {"topics": [self.line.source, self.other]}}


@pytest.fixture
def former(line: Callable[..., Line]) -> Former:
    """Return a pipeline of which Spark has planned a batch that read one record of each topic."""
    one = line(1)
    two = Former(one, one.topics("in2", 1))
    one.send([b"a1"])
    produce(one.kafka, two.other, [Record(b"x1")])
    leave_stream_plan(one.pipeline(), {(one.source, 0): 1, (two.other, 0): 1})
    return two


def test_topic_recreated_after_a_start_without_a_batch_is_refused(former: Former) -> None:
    """That start has nothing to read, and notes the ids: records of the new topic would be skipped."""
    one = former.line
    one.run(**former.both)
    recreated(one, former.other)
    produce(one.kafka, former.other, [Record(b"y1"), Record(b"y2")])
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        one.run(**former.both)
    assert one.values() == []
