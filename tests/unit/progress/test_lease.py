"""Which of a pipeline's drivers takes over."""

from __future__ import annotations

import pytest

from tailrace.progress.lease import Holder, Phase, next_in_line, ordered


def holder(run: str, since: float, phase: Phase = Phase.STANDBY) -> Holder:
    """Return a driver that is alive."""
    return Holder(run, "host", since, phase)


def test_a_driver_is_identified_by_its_client_id() -> None:
    """The other drivers read what it sends to the brokers."""
    one = holder("0a1b", 1234.567, Phase.LEADING)
    assert Holder.of(one.name, "/host") == one


@pytest.mark.parametrize("name", ["rdkafka", "1.ab.other", "x.ab.leading", "1.ab.leading.more", ""])
def test_a_foreign_client_is_not_a_driver(name: str) -> None:
    """A tool that joins the group holds no driver up."""
    assert Holder.of(name, "host") is None


def test_no_standby_takes_over_while_a_driver_leads() -> None:
    """The age of the standby does not matter."""
    holders = [holder("a", 1.0), holder("b", 9.0, Phase.LEADING)]
    assert not next_in_line(holders, "a")
    assert ordered(holders)[0].run == "b"


def test_oldest_of_several_standbys_takes_over() -> None:
    """The others see it in the list, and wait."""
    holders = [holder("b", 2.0), holder("a", 3.0), holder("c", 1.0)]
    assert [each for each in "abc" if next_in_line(holders, each)] == ["c"]


def test_two_standbys_of_the_same_moment_do_not_both_take_over() -> None:
    """The run id breaks the tie."""
    holders = [holder("b", 2.0), holder("a", 2.0)]
    assert [each for each in "ab" if next_in_line(holders, each)] == ["a"]


def test_a_standby_unknown_to_the_brokers_does_not_take_over() -> None:
    """A member list without it is not reliable about the others either."""
    assert not next_in_line([], "a")
    assert not next_in_line([holder("b", 1.0)], "a")


def test_a_driver_that_takes_over_already_leads() -> None:
    """For a moment it is a member twice."""
    holders = [holder("a", 1.0), holder("b", 2.0), holder("a", 3.0, Phase.LEADING)]
    assert ordered(holders) == [holder("a", 3.0, Phase.LEADING), holder("b", 2.0)]
    assert not next_in_line(holders, "b")
