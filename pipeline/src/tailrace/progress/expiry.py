"""Marker expiry: whether a missing marker was never written, or was deleted by the brokers.

Markers are offsets of a consumer group without members, so each expires on its own, `offsets.retention.minutes` after
it was committed. A batch's markers are committed after its plan is made; until the retention has passed since then, a
missing marker was never written. An older marker that still exists proves the same at any time: writing the batch would
have replaced it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from tailrace.config import Delivery
from tailrace.errors import NotAuthorized, ProgressMissing
from tailrace.kafka.clients import ANSWER_LIMIT, answered
from tailrace.kafka.errors import is_retriable, translate
from tailrace.progress.marker import Marker
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import AnyPlan

DEFAULT_RETENTION = 7 * 24 * 3600.0
YOUNG = 30.0  # seconds; the shortest retention is a minute, so that no marker expires earlier
_LONGEST_MARGIN = 3600.0
_LIMIT = 5.0  # seconds for a broker that answers
_SETTING = "offsets.retention.minutes"
_ASSUMED = "so Kafka's default of 7 days is used"


@dataclass(frozen=True)
class Retention:
    """How long the brokers keep the offsets of a group without members."""

    seconds: float
    note: str = ""  # set if it could not be read

    @property
    def certain(self) -> float:
        """The age up to which no marker can have expired, even if the clocks of driver and brokers differ."""
        return self.seconds - min(_LONGEST_MARGIN, self.seconds / 10)

    @property
    def setting(self) -> str:
        """The setting's name, and what is to be known about its value."""
        return f"{_SETTING}{'; ' + self.note if self.note else ''}"


def missing(plan: AnyPlan, markers: Mapping[SinkPartition, Marker]) -> list[SinkPartition]:
    """Return the sink partitions of an open batch that have no marker."""
    return [] if plan.done else _unmarked(plan, markers)


def doubtful(
    plan: AnyPlan, markers: Mapping[SinkPartition, Marker], now: float, retention: Retention
) -> list[SinkPartition]:
    """Return the sink partitions that may or may not have written the open batch."""
    return missing(plan, markers) if now - plan.at >= retention.certain else []


THEN = (
    "check the output, then `tailrace offsets set FILE … --give-up` with the offsets to continue from; "
    "`tailrace explain TR-306` lists the choices"
)


def check(
    plan: AnyPlan, markers: Mapping[SinkPartition, Marker], now: float, retention: Retention, then: str = THEN
) -> None:
    """Raise ProgressMissing if a missing marker may have expired."""
    lost = doubtful(plan, markers, now, retention)
    if not lost:
        return
    numbers = ", ".join(map(str, lost[:8])) + (", …" if len(lost) > 8 else "")
    raise ProgressMissing(
        f"batch {plan.batch} of {plan.pipeline!r} was planned {duration(now - plan.at)} ago and not noted as done; "
        f"{len(lost)} of its {plan.sinks} sink partitions have no marker ({numbers}), and the brokers delete markers "
        f"after {duration(retention.seconds)} ({retention.setting}): they may or may not have written the batch",
        kept="nothing was read or written",
        then=then,
    )


def check_done(plan: AnyPlan, markers: Mapping[SinkPartition, Marker], then: str) -> None:
    """Raise ProgressMissing if a batch that was noted as done, and is delivered again, has lost a marker."""
    lost = _unmarked(plan, markers)
    if lost:
        raise ProgressMissing(
            f"batch {plan.batch} of {plan.pipeline!r} was delivered, but the checkpoint does not say so: Spark would "
            f"bring it again, and {len(lost)} of its {plan.sinks} markers, which would keep it from being delivered "
            "twice, have been deleted since",
            kept="nothing was read or written",
            then=then,
        )


def _unmarked(plan: AnyPlan, markers: Mapping[SinkPartition, Marker]) -> list[SinkPartition]:
    if plan.delivery is not Delivery.EXACTLY_ONCE:
        return []
    return [number for number in map(SinkPartition, range(plan.sinks)) if number not in markers]


def duration(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} seconds"


def retention(admin: AdminClient) -> Retention:
    """Ask the brokers for the retention, and return the shortest; Kafka's default if they do not tell it.

    One that does not answer does not count, if another one does: it may be down, and they have one setting.
    """
    try:
        # Each is asked for its own, all at once.
        futures = {
            broker: admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))], request_timeout=_LIMIT)
            for broker in admin.list_topics(timeout=ANSWER_LIMIT).brokers
        }
        seconds, note, silent = [], "", list[KafkaException]()
        for broker, asked in futures.items():
            try:
                [future] = asked.values()
                found = answered(future, _LIMIT, f"describing broker {broker}").get(_SETTING)
            except KafkaException as error:
                if not is_retriable(error):
                    raise
                silent.append(error)
                continue
            if found is None or found.value is None:
                seconds.append(DEFAULT_RETENTION)
                note = f"broker {broker} does not tell it, {_ASSUMED}"
            else:
                seconds.append(float(found.value) * 60)
        if not seconds:
            raise silent[0]
        shortest = min(seconds)
        return Retention(shortest, note if shortest == DEFAULT_RETENTION else "")
    except KafkaException as error:
        problem = translate(error, f"reading {_SETTING} of the brokers")
        if not isinstance(problem, NotAuthorized):
            raise problem from error
        return Retention(DEFAULT_RETENTION, f"the brokers did not let us read it, {_ASSUMED}")
