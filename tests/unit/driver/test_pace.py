"""The width of the next batch, learned from the batches before it."""

from __future__ import annotations

import pytest

from tailrace.config import Pipeline
from tailrace.driver.engine import Cut
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
    """Return a pace that has learned from these: records, seconds, sink partitions."""
    pace = Pace(PIPELINE, 64)
    for records, seconds, parts in batches:
        pace.learn(records, records * 100, seconds, parts)
    return pace


def test_batch_that_is_mostly_fixed_cost_is_not_spread_over_tasks() -> None:
    """Small batches take as long as an empty one; more tasks would only make them slower."""
    pace = paced(*[(50, 0.1, 1)] * 3, *[(2_000, 0.12, 1)] * 20)
    assert pace.width(2, Cut()).of(2_000, 4) == 1


def test_batch_that_is_mostly_record_cost_is_spread_over_all_slots() -> None:
    """This holds even if all batches were alike, so that the cost of an empty one is unknown."""
    pace = paced(*[(50_000, 1.0, 2)] * 100)
    assert pace.width(2, Cut()).of(50_000, 8) == 2


def test_quick_batches_of_few_records_stay_in_one_task_on_a_busy_machine() -> None:
    """If other processes take turns, a batch's time says nothing about its records; a second task only adds to it."""
    pace = paced((20, 0.1, 1), *[(180, 0.16, 1), (300, 0.3, 1), (400, 0.45, 1)] * 20)
    assert pace.width(8, Cut()).of(400, 8) == 1


def test_few_records_that_take_long_each_are_spread_over_all_slots() -> None:
    """A function that needs a tenth of a second per record is worth every available slot."""
    pace = paced(*[(20, 2.0, 1)] * 6)
    assert pace.width(8, Cut()).of(20, 8) == 8


def test_quick_batches_become_narrow_again_after_long_ones() -> None:
    """One slow start, or one pause of the machine, does not widen all later batches."""
    pace = paced(*[(300, 3.0, 1)] * 3, *[(180, 0.2, 2)] * 100)
    assert pace.width(8, Cut()).of(300, 8) == 1


@pytest.mark.parametrize(
    ("cut", "tasks"),
    [
        (Cut(), 8),
        (Cut(shuffles=True, outputs=3, judges=True), 5),
        (Cut(shuffles=True, outputs=9, judges=True), 1),  # refused when the plan is written, with the number it needs
        (Cut(shuffles=True, outputs=3), 16),
    ],
)
def test_reading_tasks_that_are_sink_partitions_fit_into_the_ledger(cut: Cut, tasks: int) -> None:
    """Otherwise the first large batch would end the driver, and so would the first one after each restart."""
    pace = Pace(PIPELINE, 8)
    for _ in range(6):
        pace.learn(50_000, 5_000_000, 10.0, 1)
    assert pace.width(16, cut).of(50_000, 16) == tasks
