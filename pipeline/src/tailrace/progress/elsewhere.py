"""Markers of a drop-in sink in another ledger topic: its option may have been changed.

In the new topic it would not find what it has delivered of the batch that Spark brings again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tailrace.errors import ProgressMissing
from tailrace.kafka.clients import ANSWER_LIMIT, LONGEST_REQUEST, SHORT_TRY, answered, persist
from tailrace.kafka.rights import on_group
from tailrace.progress.marker import CONTINUE, CONTINUE_JOB, markers_group
from tailrace.progress.plan import BatchId


@dataclass(frozen=True)
class Elsewhere:
    """The last batches of a name that have markers in other ledger topics than its own."""

    name: str
    ledger: str
    last: Mapping[str, BatchId]  # by topic

    def refuse(self, batch: int, *, continuing: bool) -> None:
        """Refuse a batch that is new to this ledger, if a part of it or of a later one was delivered with another.

        To a ledger that is `continuing` from the batch before, later ones are those of an earlier checkpoint folder.
        """
        for topic, last in sorted(self.last.items()):
            if last == batch or (last > batch and not continuing):
                raise ProgressMissing(
                    f"the ledger {self.ledger!r} does not know batch {batch} of {self.name!r}, and the ledger "
                    f"{topic!r} has markers of it up to batch {last}",
                    kept="nothing was written",
                    then="if you changed ledger.topic, change it back, finish the batch with the trigger availableNow, "
                    f"then change it; otherwise {CONTINUE}; {CONTINUE_JOB}",
                )


def elsewhere(admin: AdminClient, name: str, ledger: str) -> Elsewhere:
    """Look for markers of this name; brokers forget those of a topic that was deleted."""
    group, doing = markers_group(name), f"looking for markers of {name!r} in other ledger topics"

    def ask() -> ConsumerGroupTopicPartitions:
        asked = ConsumerGroupTopicPartitions(group)
        answers = admin.list_consumer_group_offsets([asked], request_timeout=LONGEST_REQUEST)
        found: ConsumerGroupTopicPartitions = answered(answers[group], SHORT_TRY, doing)
        return found

    last: dict[str, BatchId] = {}
    for each in persist(ask, doing, 4 * ANSWER_LIMIT, [on_group(group)]).topic_partitions or ():
        if each.offset > 0 and each.topic != ledger:  # a marker's offset is the batch after the last one
            last[each.topic] = BatchId(max(last.get(each.topic, -1), each.offset - 1))
    return Elsewhere(name, ledger, last)
