"""The proof of one pipeline: a concurrent reader, a final reader, the brokers' view of transactions, and the markers.

It also attributes each finding to a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, TopicPartition

from faults.checker import Array, Counts, Cut, Verdict, check
from faults.reading import differences, read_heads, whole
from faults.records import Fed
from faults.scenario import Expect, Result
from faults.transactions import beyond, open_after
from tailrace.config import Kafka
from tailrace.kafka.clients import client_options, persist
from tailrace.progress.plan import Plan
from tailrace.progress.stream_plan import AnyPlan, read


@dataclass(frozen=True)
class Strike:
    """A fault that struck in a batch."""

    fault: str
    batch: int
    note: str = ""


@dataclass(frozen=True)
class Proof:
    """The findings at the end of a pipeline."""

    verdict: Verdict
    unsteady: int  # records that the concurrent reader got differently
    lingering: tuple[str, ...]
    surplus: tuple[str, ...]  # transactional ids
    markers: tuple[str, ...]  # what is wrong with them

    def __str__(self) -> str:
        parts = [str(self.verdict)]
        parts += [f"{self.unsteady} records differ in the concurrent reader"] if self.unsteady else []
        parts += [f"still open: {', '.join(self.lingering)}"] if self.lingering else []
        parts += [f"surplus transactional ids: {', '.join(self.surplus)}"] if self.surplus else []
        return "; ".join([*parts, *self.markers])


def prove(
    bootstrap: str,
    pipeline: str,
    fed: Fed,
    sink: str,
    rejected: str,
    watched: Mapping[int, Array] | None,
    *,
    ledger: str,
    last: int,
    sinks: int,
    ever: int | None = None,
    transactional: bool = True,
) -> Proof:
    """Read everything, and compare.

    `last` is the batch that every marker must name, `ever` the greatest number of sink partitions of any batch.
    """
    lingering = open_after(bootstrap, pipeline) if transactional else []
    output, refused = read_heads(bootstrap, sink), read_heads(bootstrap, rejected)
    return Proof(
        check(fed, output, refused),
        0 if watched is None else differences(dict(watched), output),
        tuple(lingering),
        tuple(beyond(bootstrap, pipeline, ever or sinks)) if transactional else (),
        tuple(wrong_markers(bootstrap, pipeline, ledger, last, sinks)) if transactional else (),
    )


def wrong_markers(bootstrap: str, pipeline: str, ledger: str, last: int, sinks: int) -> list[str]:
    """Describe the wrong markers; they are the group's offsets, read as any tool would."""
    consumer = Consumer(
        client_options(Kafka(bootstrap_servers=bootstrap))
        | {"group.id": f"tailrace.{pipeline}.markers", "enable.auto.commit": False}
    )
    try:
        places = [TopicPartition(ledger, number) for number in range(sinks)]
        found = persist(lambda: consumer.committed(places, timeout=10.0), "reading the markers", 60)
    finally:
        consumer.close()
    return [
        f"the marker of sink partition {each.partition} is {each.offset}, not {last + 1}"
        for each in found
        if each.offset != last + 1
    ]


def wrong_ranges(planned: Mapping[int, AnyPlan], ends: Mapping[int, int]) -> list[str]:
    """Describe where a pipeline's batches do not join, overlap, or do not reach the ends of its source partitions."""
    found: list[str] = []
    reached = dict.fromkeys(ends, 0)
    for number in range(max(planned, default=-1) + 1):
        plan = planned.get(number)
        if plan is None:
            found.append(f"there is no plan of batch {number}")
        elif isinstance(plan, Plan):
            for each in plan.ranges:
                if each.start != reached.get(each.partition, 0):
                    found.append(f"batch {number} reads {each}, and {reached.get(each.partition, 0)} was reached")
                reached[each.partition] = each.end
        else:
            return []  # Spark plans the batches of this pipeline; its checkpoint knows what was read
    missing = {partition: (reached[partition], end) for partition, end in ends.items() if reached[partition] != end}
    return [*found, *(f"partition {each} was read to {at} of {end}" for each, (at, end) in missing.items())]


def every_plan(bootstrap: str, ledger: str, pipeline: str) -> list[AnyPlan]:
    """Read a pipeline's plans from the ledger, in the order in which they were written."""
    found: list[AnyPlan] = []

    def keep(message: Message) -> None:
        value = message.value()
        if message.key() == pipeline.encode() and value is not None:
            found.append(read(value, "the ledger"))

    whole(bootstrap, ledger, keep, "read_committed")
    return found


def plans(bootstrap: str, ledger: str, pipeline: str) -> dict[int, AnyPlan]:
    """Return the last plan of each batch; one that was given up has no ranges in it."""
    return {int(plan.batch): plan for plan in every_plan(bootstrap, ledger, pipeline)}


def by_fault(
    proof: Proof,
    cuts: Iterable[Cut],
    strikes: Sequence[Strike],
    *,
    native: bool = False,
    expect: Expect = Expect.EXACT,
) -> list[Result]:
    """Return a result for each fault: the errors in the batch that it struck, and in those up to the next strike.

    Errors that belong to no batch (open transactions, markers, ids, differing readers) go to the last result.
    """
    struck = sorted({each.batch for each in strikes})
    if not struck:
        raise ValueError("no fault has struck")
    shares: dict[int, list[Cut]] = {each: [] for each in struck}
    for cut in cuts:
        shares[max([each for each in struck if each <= cut.batch], default=struck[0])].append(cut)
    found = {batch: proof.verdict.of(share) for batch, share in shares.items()}
    counted: set[int] = set()
    rows: list[Result] = []
    for fault in dict.fromkeys(each.fault for each in strikes):
        mine = [each for each in strikes if each.fault == fault]
        batches = {each.batch for each in mine}
        total = Counts()
        for batch in batches:
            total += found[batch]
        rows.append(
            Result(
                fault,
                runs=len(mine),
                records=total.records,
                again=sum(found[batch].records for batch in batches & counted),
                lost=total.lost,
                duplicated=total.duplicated,
                reordered=total.reordered,
                torn=total.torn,
                note="; ".join(dict.fromkeys(each.note for each in mine if each.note)),
                native=native,
                expect=expect,
            )
        )
        counted |= batches
    # Errors outside of every batch count, too.
    overall = proof.verdict.all()
    inside = sum((each.lost + each.duplicated + each.reordered) for each in found.values())
    left = max(0, overall.lost + overall.duplicated + overall.reordered - inside)
    rows[-1] = rows[-1].plus(
        duplicated=left,
        torn=proof.unsteady + len(proof.markers),
        lingering=len(proof.lingering),
        ids=len(proof.surplus),
    )
    return rows
