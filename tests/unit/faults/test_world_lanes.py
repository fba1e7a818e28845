"""Worlds in lanes: each runs once, and what the lanes found is added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.worlds import lanes as worlds_lanes
from faults.worlds.__main__ import _every, main
from faults.worlds.drawing import draw
from faults.worlds.lanes import FRESH, Tally, groups
from faults.worlds.oracle import Outcome
from faults.worlds.world import World


def test_every_world_runs_on_a_kafka_that_few_others_used() -> None:
    """None is left out, and their order stays."""
    worlds = [draw(seed) for seed in range(2 * FRESH + 1)]
    found = list(groups(worlds))
    assert [each for group in found for each in group] == worlds
    assert [len(each) for each in found] == [FRESH, FRESH, 1]


def test_tallies_add_up() -> None:
    """The last line of a run counts all lanes."""
    assert str(Tally(2, 1500, 0) + Tally(1, 500, 1)) == "3 worlds, 2,000 records, 1 of them broke a promise"


@pytest.mark.parametrize(
    ("broken", "ran", "unfinished", "clusters"),
    [({1}, [0, 2, 3], 1, 2), ({0, 1, 2}, [], 3, 3), ({0, 1, 3}, [2], 3, 3), (set(), [0, 1, 2, 3], 0, 1)],
)
def test_lane_goes_on_after_a_world_that_it_could_not_finish(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: set[int], ran: list[int], unfinished: int, clusters: int
) -> None:
    """On a busy machine lanes ended one after the other, and the last one went on alone; three in a row are enough."""
    begun: list[int] = []
    kept: list[int] = []

    @contextmanager
    def brokers() -> Iterator[None]:
        begun.append(len(begun))
        yield None

    def one(world: World, kafka: None, folder: Path, file: Path | None) -> Outcome:
        if world.seed in broken:
            raise TimeoutError("no answer within 5 s")
        kept.append(world.seed)
        return Outcome(records=10)

    monkeypatch.setattr("faults.worlds.__main__.brokers", brokers)
    monkeypatch.setattr("faults.worlds.__main__._one", one)
    found = _every([draw(seed) for seed in range(4)], tmp_path, None, None, replayed=False)
    assert (kept, found.unfinished, found.worlds) == (ran, unfinished, len(ran))
    assert len(begun) == clusters


def test_mutant_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A campaign without mutants would have caught them all."""
    with pytest.raises(SystemExit) as ended:
        main(["--mutants", "marker-ignored,plan-after-the-job"])
    assert ended.value.code == 2
    assert "invalid choice: 'marker-ignored,plan-after-the-job'" in capsys.readouterr().err


def test_lanes_try_each_mutant_once_in_the_place_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that Spark's worlds take minutes to catch is caught by threads in seconds."""
    started: list[list[str]] = []

    def run(lanes: Sequence[Sequence[str]], file: Path | None) -> tuple[list[int], list[dict[str, Any]]]:
        started.extend(list(each) for each in lanes)
        return [0 for _ in lanes], []

    monkeypatch.setattr(worlds_lanes, "_run", run)
    names = ["marker-ignored", "plan-after-the-job", "open-transactions-read"]
    asked = ["--place", "threads", "--seed", "7", "--count", "3", "--lanes", "2", "--mutants"]
    assert main([*asked, *names]) == 0
    common = ["--place", "threads", "--seed", "7", "--count", "3", "--mutants"]
    assert started == [[*common, names[0], names[2]], [*common, names[1]]]
