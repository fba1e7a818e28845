"""Whose turn it is among the drivers of a pipeline."""

from __future__ import annotations

import pytest

from tailrace.progress.lease import Holder, Phase, next_in_line, ordered


def holder(run: str, since: float, phase: Phase = Phase.STANDBY) -> Holder:
    """A driver that is alive."""
    return Holder(run, "host", since, phase)


def test_a_driver_is_known_by_its_clients_name() -> None:
    """What it tells the brokers is what the others read."""
    one = holder("0a1b", 1234.567, Phase.LEADING)
    assert Holder.of(one.name, "/host") == one


@pytest.mark.parametrize("name", ["rdkafka", "1.ab.other", "x.ab.leading", "1.ab.leading.more", ""])
def test_somebody_elses_client_is_no_driver(name: str) -> None:
    """A tool that joins the group does not hold anyone up."""
    assert Holder.of(name, "host") is None


def test_nobody_takes_over_while_one_leads() -> None:
    """However old the standby is."""
    holders = [holder("a", 1.0), holder("b", 9.0, Phase.LEADING)]
    assert not next_in_line(holders, "a")
    assert ordered(holders)[0].run == "b"


def test_the_oldest_of_several_standbys_takes_over() -> None:
    """The others see it in the list, and wait."""
    holders = [holder("b", 2.0), holder("a", 3.0), holder("c", 1.0)]
    assert [each for each in "abc" if next_in_line(holders, each)] == ["c"]


def test_two_standbys_of_the_same_moment_do_not_both_take_over() -> None:
    """The run decides."""
    holders = [holder("b", 2.0), holder("a", 2.0)]
    assert [each for each in "ab" if next_in_line(holders, each)] == ["a"]


def test_a_standby_that_the_brokers_do_not_know_of_has_no_turn() -> None:
    """An answer without it says nothing about the others either."""
    assert not next_in_line([], "a")
    assert not next_in_line([holder("b", 1.0)], "a")


def test_a_driver_that_takes_over_leads_already() -> None:
    """For a moment it is a member twice."""
    holders = [holder("a", 1.0), holder("b", 2.0), holder("a", 3.0, Phase.LEADING)]
    assert ordered(holders) == [holder("a", 3.0, Phase.LEADING), holder("b", 2.0)]
    assert not next_in_line(holders, "b")
