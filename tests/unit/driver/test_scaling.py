"""The number of executors: more for a backlog, fewer after a long calm, and no change in between."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tailrace.config import Executors, Pipeline
from tailrace.driver import executor_file
from tailrace.driver.scaler import Scaler
from tailrace.driver.scaling import Bounds, Scaling, Seen
from tailrace.errors import ConfigInvalid
from tailrace.status.events import Event

BOUNDS = Bounds(least=1, most=8, backlog=60.0, settle=300.0)
PIPELINE = {"pipeline": "copies", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}


def scaled(scaling: Scaling, coming: float, seconds: int, waiting: float = 0.0, each: float = 100.0) -> list[Scaling]:
    """Return the state of each second; each executor reads `each` records a second and comes 20 s after the request."""
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
    """It takes as many as necessary, never more than the maximum, and ends with the minimum."""
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
    """It finds the number that can carry the load, and then no executor comes or goes."""
    history = scaled(Scaling(BOUNDS, 1), coming=250, seconds=6000)
    assert len({each.wanted for each in history[-2000:]}) <= 2
    assert min(each.wanted for each in history[-2000:]) >= 2


def test_no_more_executors_are_requested_before_the_last_ones_arrive() -> None:
    """Otherwise a backlog would request the maximum while the first executors are still starting."""
    scaling = Scaling(BOUNDS, 1, rate=100.0).after(Seen(0.0, 10_000, 1, 100, 1.0))
    assert scaling.wanted == 2
    for now in range(1, 100):
        scaling = scaling.after(Seen(now, 10_000 + now * 100, 1, 100, 1.0))
    assert scaling.wanted == 2
    assert scaling.after(Seen(100.0, 20_000, 2, 200, 1.0)).wanted == 4


def test_nothing_changes_between_calm_and_backlog() -> None:
    """The load is neither calm nor too much."""
    scaling = Scaling(BOUNDS, 3, rate=100.0)
    for now in range(0, 5000, 10):
        scaling = scaling.after(Seen(now, 3_000, 3))
    assert (scaling.wanted, scaling.calm) == (3, None)


def test_a_short_calm_releases_no_executor() -> None:
    """The calm starts over after each disturbance."""
    scaling = Scaling(BOUNDS, 3, rate=100.0)
    for now in range(0, 5000, 10):
        scaling = scaling.after(Seen(now, 3_000 if now % 290 == 0 else 0, 3))
    assert scaling.wanted == 3


def test_nothing_is_decided_while_the_speed_is_unknown() -> None:
    """There is a backlog at the start, before the first batch."""
    scaling = Scaling(BOUNDS, 2).after(Seen(0.0, 1_000_000, 2))
    assert scaling == replace(Scaling(BOUNDS, 2), calm=None)


def test_the_first_number_is_within_the_bounds() -> None:
    """This holds whatever spark.executor.instances says."""
    spark = {"spark.master": "k8s://https://api", "spark.executor.instances": "9"}
    made = Pipeline.model_validate({**PIPELINE, "spark": spark, "executors": {"min": 2, "max": 4}})
    assert Scaler(made).wanted == 4
    assert Scaler(Pipeline.model_validate(PIPELINE)).wanted is None


def test_contradicting_settings_are_refused() -> None:
    """Examples are a maximum below the minimum, and executors that are threads of the driver."""
    with pytest.raises(ConfigInvalid, match=r"executors\.max is 1, less than executors\.min, which is 2"):
        Executors(min=2, max=1)
    with pytest.raises(ConfigInvalid, match="executors that are pods"):
        Pipeline.model_validate({**PIPELINE, "executors": {"max": 2}})
    with pytest.raises(ConfigInvalid, match="executors that are pods"):
        Pipeline.model_validate({**PIPELINE, "executors": {"file": "/run/executors"}})


class Backend:
    """What a session asks of Spark's scheduler, for two executors."""

    def __init__(self) -> None:
        self.spark = MagicMock()
        context = self.spark.sparkContext
        self._scheduler = context._jsc.sc.return_value
        self._scheduler.getExecutorIds.return_value.mkString.return_value = "1 2"
        context._jvm.org.apache.spark.api.python.PythonUtils.toSeq.side_effect = tuple

    @property
    def requested(self) -> list[int]:
        """The numbers that were requested."""
        return [each.args[0] for each in self._scheduler.requestTotalExecutors.call_args_list]

    @property
    def released(self) -> list[str]:
        """The executors that were released."""
        return [name for each in self._scheduler.killExecutors.call_args_list for name in each.args[0]]


def fed(tmp_path: Path, text: str, **executors: int) -> tuple[Path, Pipeline]:
    """Return a file that asks for executors, and a pipeline that reads it."""
    file = tmp_path / "executors"
    file.write_text(text, encoding="utf-8")
    spark = {"spark.master": "k8s://https://api"}
    made = Pipeline.model_validate({**PIPELINE, "spark": spark, "executors": {"file": str(file), **executors}})
    return file, made


def test_changed_file_changes_the_number_of_a_running_driver(tmp_path: Path) -> None:
    """More are requested, fewer release the youngest, and nonsense changes nothing."""
    file, made = fed(tmp_path, "2\n")
    assert executor_file.instances(made) == 2
    clock = itertools.count(10.0, 10.0)
    scaler, backend, events = Scaler(made, lambda: next(clock)), Backend(), list[Event]()
    for text, wanted in (("2", 2), ("4", 4), ("none", 4), ("0", 4), ("1", 1)):
        file.write_text(text, encoding="utf-8")
        scaler.look(backend.spark, events.append)
        assert scaler.wanted == wanted
    file.unlink()
    scaler.look(backend.spark, events.append)
    assert (backend.requested, backend.released, scaler.wanted) == ([4, 1], ["2"], 1)
    assert [each.as_dict()["wanted"] for each in events] == [4, 1]


def test_scaling_continues_from_the_number_in_the_file(tmp_path: Path) -> None:
    """Within its bounds."""
    file, made = fed(tmp_path, "2", min=1, max=4)
    clock = itertools.count(10.0, 10.0)
    scaler, backend = Scaler(made, lambda: next(clock)), Backend()
    file.write_text("9", encoding="utf-8")
    scaler.look(backend.spark, lambda event: None)
    assert (scaler.wanted, backend.requested) == (4, [4])
    scaler.look(backend.spark, lambda event: None)
    assert backend.requested == [4]
