"""How many executors there are to be: more for a backlog, fewer when it has long been calm, and nothing in between."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tailrace.config import Executors, Pipeline
from tailrace.driver.scaler import Scaler
from tailrace.driver.scaling import Bounds, Scaling, Seen

BOUNDS = Bounds(least=1, most=8, backlog=60.0, settle=300.0)
PIPELINE = {"pipeline": "copies", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}


def scaled(scaling: Scaling, coming: float, seconds: int, waiting: float = 0.0, each: float = 100.0) -> list[Scaling]:
    """What is wanted at each second, where an executor reads so many records a second and comes 20 s after the wish."""
    present, asked, history = scaling.wanted, 0, []
    for now in range(seconds):
        waiting += coming
        read = min(waiting, present * each)
        waiting -= read
        before = scaling.wanted
        scaling = scaling.after(Seen(now, int(waiting), present, int(read), 1.0 if read else 0.0))
        asked = now if scaling.wanted != before else asked
        present = scaling.wanted if now - asked >= 20 else min(present, scaling.wanted)
        history.append(scaling)
    return history


def test_a_backlog_brings_more_and_its_end_fewer() -> None:
    """As many as it takes, never more than there may be, and in the end the least."""
    history = scaled(Scaling(BOUNDS, 1), coming=0, seconds=4000, waiting=100_000)
    wanted = [each.wanted for each in history]
    assert max(wanted) == 8
    assert wanted[-1] == 1
    up = wanted.index(8)
    assert wanted[:up] == sorted(wanted[:up])
    down = wanted[up:]
    assert down == sorted(down, reverse=True)
    assert {a - b for a, b in itertools.pairwise(down)} <= {0, 1}


def test_a_steady_load_settles() -> None:
    """The number that bears it is found, and then nothing comes and goes."""
    history = scaled(Scaling(BOUNDS, 1), coming=250, seconds=6000)
    assert len({each.wanted for each in history[-2000:]}) <= 2
    assert min(each.wanted for each in history[-2000:]) >= 2


def test_no_more_are_asked_for_before_those_have_come() -> None:
    """Else a backlog would ask for all that there may be, while the first are still starting."""
    scaling = Scaling(BOUNDS, 1, rate=100.0).after(Seen(0.0, 10_000, 1, 100, 1.0))
    assert scaling.wanted == 2
    for now in range(1, 100):
        scaling = scaling.after(Seen(now, 10_000 + now * 100, 1, 100, 1.0))
    assert scaling.wanted == 2
    assert scaling.after(Seen(100.0, 20_000, 2, 200, 1.0)).wanted == 4


def test_nothing_happens_in_the_band_between() -> None:
    """Neither calm nor too much."""
    scaling = Scaling(BOUNDS, 3, rate=100.0)
    for now in range(0, 5000, 10):
        scaling = scaling.after(Seen(now, 3_000, 3))
    assert (scaling.wanted, scaling.calm) == (3, None)


def test_a_short_calm_lets_nobody_go() -> None:
    """It begins anew after each disturbance."""
    scaling = Scaling(BOUNDS, 3, rate=100.0)
    for now in range(0, 5000, 10):
        scaling = scaling.after(Seen(now, 3_000 if now % 290 == 0 else 0, 3))
    assert scaling.wanted == 3


def test_nothing_is_decided_while_nobody_knows_how_fast_it_is() -> None:
    """A backlog at the start, before the first batch."""
    scaling = Scaling(BOUNDS, 2).after(Seen(0.0, 1_000_000, 2))
    assert scaling == replace(Scaling(BOUNDS, 2), calm=None)


def test_the_first_number_is_within_the_bounds() -> None:
    """Whatever spark.executor.instances says."""
    spark = {"spark.master": "k8s://https://api", "spark.executor.instances": "9"}
    made = Pipeline.model_validate({**PIPELINE, "spark": spark, "executors": {"min": 2, "max": 4}})
    assert Scaler(made).wanted == 4
    assert Scaler(Pipeline.model_validate(PIPELINE)).wanted is None


def test_what_contradicts_itself_is_refused() -> None:
    """Fewer at most than at least; and executors that are threads of the driver."""
    with pytest.raises(ValidationError, match=r"executors\.max is 1, fewer than executors\.min, 2"):
        Executors(min=2, max=1)
    with pytest.raises(ValidationError, match="executors that are pods"):
        Pipeline.model_validate({**PIPELINE, "executors": {"max": 2}})
