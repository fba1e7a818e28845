"""Where a run ends that reads what exists: at a backfill's bound, or where the source ended when the run began."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.driver.choose import reached
from tailrace.driver.look import Seen
from tailrace.driver.source_changes import Changes
from tailrace.errors import NotAuthorized, TopicUnknown
from tailrace.kafka.clients import TopicPartitions
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import denied
from tailrace.kafka.leader_ends import told_by_leaders
from tailrace.kafka.rights import Operation, on_topic
from tailrace.progress.plan import Away, unseen
from tailrace.progress.positions import bounded

_KEPT = "everything that was delivered; nothing more was read"
_LONG = 60.0  # seconds without a batch after which a run does not wait for what it lacks


class Target:
    """The end of a run; without one it reads on."""

    def __init__(self, until: TopicPartitions | None = None) -> None:
        self.ends = until
        self._fixed = until is not None

    def aim(self, cluster: Cluster, look: Callable[[], Seen]) -> Seen:
        """Look, and take the source's ends of now, unless a topic is in doubt, or was hidden or deleted meanwhile."""
        try:
            seen = told_by_leaders(cluster, look().ends, look, _KEPT)
        except (NotAuthorized, TopicUnknown):
            return look()  # which tells what has become of it
        if not seen.disputed:
            self.ends = dict(seen.ends)
        return seen

    def bound(self, ends: TopicPartitions) -> TopicPartitions:
        """Return these ends, or the target where it is earlier."""
        return ends if self.ends is None else bounded(ends, self.ends)

    def change(self, changed: Changes, ends: TopicPartitions) -> None:
        """Do not wait for what is lost; read a topic that was created again to where it ends now."""
        if self.ends is None or self._fixed:
            return
        again = changed.recreated
        lost = {*changed.gone, *(each.place for each in changed.behind)}
        left = {place: end for place, end in self.ends.items() if place not in lost and place[0] not in again}
        self.ends = left | {place: end for place, end in ends.items() if place[0] in again}

    def met(self, positions: TopicPartitions, away: Away, seen: Seen, waited: float) -> bool:
        """Return whether the run may end; raise NotAuthorized if what is left to read has been hidden for long.

        What a log has lost between the positions and the target never comes: after a while, the end is taken anew.
        """
        if self.ends is None or seen.disputed:
            return False
        if reached(positions, self.ends, away):
            return True
        left = sorted({place[0] for place, at in unseen(away).items() if at < self.ends.get(place, 0)})
        if self._fixed or waited <= _LONG:
            return False
        if left:
            raise denied(
                f"{', '.join(left[:5])} may not be described, and was not read to its end",
                [on_topic(Operation.READ, topic) for topic in left],
                _KEPT,
            )
        self.ends = None
        return False
