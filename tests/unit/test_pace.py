"""How wide the next batch is, after the batches before it."""

from __future__ import annotations

from tailrace.config import Pipeline
from tailrace.driver.pace import Pace

PIPELINE = Pipeline.model_validate(
    {
        "pipeline": "p",
        "kafka": {"bootstrap.servers": "localhost:9092"},
        "source": {"topics": ["in"]},
        "sink": {"topic": "out"},
    }
)


def paced(*batches: tuple[int, float, int]) -> Pace:
    """A pace that has learned from these: records, seconds, sink partitions."""
    pace = Pace(PIPELINE)
    for records, seconds, parts in batches:
        pace.learn(records, records * 100, seconds, parts)
    return pace


def test_batch_whose_time_is_the_jobs_own_is_not_spread_over_tasks() -> None:
    """Small batches take as long as a batch of nothing; more tasks would only make them slower."""
    pace = paced(*[(50, 0.1, 1)] * 3, *[(2_000, 0.12, 1)] * 20)
    assert pace.width(2).of(2_000, 4) == 1


def test_batch_whose_time_is_its_records_is_spread_over_all_slots() -> None:
    """Even where all batches were alike, so that nobody knows what an empty one costs."""
    pace = paced(*[(50_000, 1.0, 2)] * 100)
    assert pace.width(2).of(50_000, 8) == 2
