"""Where a run ends that reads what exists: where its source ended, whatever single answers of brokers say later."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tailrace.driver.look import Seen
from tailrace.driver.source_changes import changes
from tailrace.driver.target import Target
from tailrace.errors import KafkaFailed, NotAuthorized, TailraceError, TopicUnknown
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster

A, B = ("a", 0), ("b", 0)
IDS = {"a": "id-a", "b": "id-b"}
BOTH = Seen({A: 10, B: 20}, IDS, 0.0)


class Brokers:
    """Brokers that agree on where topics end, one of which may say otherwise."""

    def __init__(self, says: TopicPartitions, agreed: TopicPartitions) -> None:
        self.latest: Any = lambda places: {place: says[place] for place in places}
        self.agreed_latest: Any = lambda places: {place: agreed[place] for place in places}


def target(says: TopicPartitions | None = None, seen: Seen = BOTH) -> Target:
    """Return the target of a run that begins now."""
    made = Target()
    made.aim(cast(Cluster, Brokers(says or BOTH.ends, dict(BOTH.ends))), lambda: seen)
    return made


def test_run_ends_only_once_it_has_read_to_its_target() -> None:
    """A broker that is cut off says that a topic ends earlier, and there would be nothing to read."""
    aimed = target()
    earlier = Seen({A: 10, B: 15}, IDS, 0.0)
    assert not aimed.met({A: 10, B: 15}, {}, earlier, 0.0)
    assert aimed.met({A: 10, B: 20}, {}, earlier, 0.0)
    assert aimed.bound({A: 12, B: 15}) == {A: 10, B: 15}


def test_target_is_not_taken_from_a_broker_that_is_cut_off() -> None:
    """It would leave out what exists; the run asks again."""
    with pytest.raises(KafkaFailed, match=r"1 partitions end too early, .* \(b-0 at 15\)"):
        target(says={A: 10, B: 15})


def test_target_is_not_taken_while_a_topic_is_in_doubt() -> None:
    """Its offsets may be those of another topic; until then the run reads on."""
    made = target(seen=Seen({A: 10}, {"a": "id-a"}, 0.0, disputed=frozenset({"b"})))
    assert made.ends is None
    assert made.bound({A: 12}) == {A: 12}
    assert not made.met({A: 12}, {}, BOTH, 0.0)


def test_topic_that_is_missing_from_an_answer_is_waited_for() -> None:
    """A broker that lags may leave it out; if it is hidden for long, the run ends with an error instead."""
    aimed, away, alone = target(), {"id-b": {B: 15}}, Seen({A: 10}, {"a": "id-a"}, 0.0)
    assert not aimed.met({A: 10}, away, alone, 59.0)
    with pytest.raises(NotAuthorized, match="b may not be described, and was not read to its end"):
        aimed.met({A: 10}, away, alone, 61.0)
    assert aimed.met({A: 10}, {"id-b": {B: 20}}, alone, 61.0)


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        (Seen({A: 10}, {"a": "id-a"}, 0.0, deleted=frozenset({"b"})), {A: 10}),
        (Seen({A: 10, B: 7}, IDS | {"b": "id-new"}, 0.0), {A: 10, B: 7}),
        (Seen({A: 10, B: 13}, IDS, 0.0, short=frozenset({B})), {A: 10}),
    ],
    ids=["deleted", "created again", "truncated"],
)
def test_what_is_lost_is_not_waited_for(seen: Seen, ends: TopicPartitions) -> None:
    """The pipeline goes on without it; a topic that was created again is read to where it ends then."""
    aimed = target()
    aimed.change(changes({A: 10, B: 15}, IDS, seen), seen.ends)
    assert aimed.ends == ends


def test_target_that_a_log_no_longer_reaches_is_taken_anew() -> None:
    """A log that was cut between the position and the target ends earlier, and the rest never comes."""
    aimed = target()
    assert not aimed.met({A: 10, B: 15}, {}, BOTH, 59.0)
    assert aimed.ends is not None
    assert not aimed.met({A: 10, B: 15}, {}, BOTH, 61.0)
    assert aimed.ends is None


@pytest.mark.parametrize("error", [NotAuthorized, TopicUnknown])
def test_topic_that_goes_while_the_target_is_taken_is_left_to_the_next_look(error: type[TailraceError]) -> None:
    """That one tells whether it is hidden or gone; the run must not end before."""

    def refused(places: object) -> TopicPartitions:
        raise error("b is not there")

    brokers = Brokers({}, {})
    brokers.agreed_latest = refused
    made = Target()
    made.aim(cast(Cluster, brokers), lambda: BOTH)
    assert made.ends is None


def test_bound_of_a_backfill_stays() -> None:
    """Its plans repeat it."""
    bound = Target({B: 20})
    bound.change(changes({A: 10, B: 15}, IDS, Seen({A: 10, B: 7}, IDS | {"b": "new"}, 0.0)), {A: 10, B: 7})
    assert bound.ends == {B: 20}
    assert not bound.met({A: 10}, {"id-b": {B: 15}}, BOTH, 61.0)
