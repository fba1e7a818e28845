"""Every order of crashes and verdicts at the gate: each record comes out once, on one side, or the batch stops."""

from __future__ import annotations

import pytest

from support.gate_model import BehindAShuffle, InOneTask, walk

MODELS: dict[str, BehindAShuffle | InOneTask] = {"behind a shuffle": BehindAShuffle(), "in one task": InOneTask()}


@pytest.mark.parametrize("name", MODELS)
def test_record_comes_out_once_on_one_side_in_every_order_of_steps(name: str) -> None:
    """This holds even if each reading reaches different verdicts from the one before."""
    worlds, fault, way = walk(MODELS[name])
    assert fault == "", "\n".join(way)
    assert worlds > 50


BROKEN: dict[str, BehindAShuffle | InOneTask] = {
    "comparing verdicts": BehindAShuffle(compares=False),
    "committing rejected records before rows count": BehindAShuffle(commits_first=False),
    "asking whether the attempt is complete": InOneTask(asks=False),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_record_is_lost_or_duplicated_without_a_rule_of_the_gate(rule: str) -> None:
    """The walk can fail, and each rule is needed."""
    _, fault, way = walk(BROKEN[rule])
    assert "came out" in fault
    assert way
