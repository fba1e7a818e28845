"""Leader election among a pipeline's drivers: the members of the consumer group `tailrace.<pipeline>.drivers`.

Kafka notices within the session timeout when a member dies, and at once when it leaves, so a standby knows when it is
its turn. The lease decides only when a driver starts, never which one may write: fencing decides that
(`progress.ledger`). So a lease that is lost, late or wrong costs time but no record.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.config import Pipeline
from tailrace.errors import TailraceError
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.errors import translate
from tailrace.kafka.rights import on_groups
from tailrace.progress.marker import drivers_group

_POLL = 0.1
_CLIENT = re.compile(r"(\d+)\.([0-9a-f]+)\.([a-z]+)")
# Transient or irrelevant errors: the client reconnects and rejoins by itself.
_PASSES = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._RESOLVE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class Phase(StrEnum):
    """The phase of a driver."""

    STANDBY = "standby"  # ready, and waiting for its turn
    LEADING = "leading"  # has taken over the pipeline, or is about to


@dataclass(frozen=True)
class Holder:
    """A live driver."""

    run: str
    host: str
    since: float  # seconds since 1970, by that driver's clock
    phase: Phase

    @property
    def name(self) -> str:
        """Its client id."""
        return f"{int(self.since * 1000)}.{self.run}.{self.phase}"

    @classmethod
    def of(cls, client: str, host: str) -> Holder | None:
        """Return the driver behind a member of the group; None for any other client."""
        found = _CLIENT.fullmatch(client)
        if found is None or found[3] not in set(Phase):
            return None
        return cls(found[2], host.removeprefix("/"), int(found[1]) / 1000, Phase(found[3]))


def ordered(holders: Sequence[Holder]) -> list[Holder]:
    """Sort leaders first, then by age, each driver once: one that is taking over is briefly in both phases."""
    ranked = sorted(holders, key=lambda each: (each.phase is not Phase.LEADING, each.since, each.run))
    return list({each.run: each for each in reversed(ranked)}.values())[::-1]


def next_in_line(holders: Sequence[Holder], run: str) -> bool:
    """Return whether it is this standby's turn: there is no leader, and it is the oldest standby.

    A standby that the brokers do not list has no turn: their answer may be stale.
    """
    ranked = ordered(holders)
    return bool(ranked) and ranked[0].run == run


def running(cluster: Cluster, pipeline: str) -> list[Holder]:
    """Return a pipeline's live drivers: the leader, then the standbys, oldest first.

    A driver that was killed is listed until its session times out (`ledger.lease`).
    """
    members = cluster.members(drivers_group(pipeline))
    return ordered([holder for client, host in members if (holder := Holder.of(client, host)) is not None])


class Lease:
    """This driver's membership, kept by a thread of its own. Problems with it are reported, and stop nothing."""

    def __init__(self, pipeline: Pipeline, run: str, trouble: Callable[[str], None] = lambda text: None) -> None:
        self._pipeline = pipeline
        self._run = run
        self._trouble = trouble
        self._reported: set[str] = set()
        self.problem: TailraceError | None = None  # why the brokers do not accept it as a member
        self._members: list[_Member] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="tailrace-lease", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self, phase: Phase) -> None:
        """Join the group in this phase; leave it in the earlier phase once the brokers know of the new one."""
        holder = Holder(self._run, "", time.time(), phase)
        with self._lock:
            if self._closing.is_set():
                return
            self._members.append(_Member(self._pipeline, holder))
            if self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """Leave at once: a standby sees that with its next request."""
        with self._lock:
            self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _keep(self) -> None:
        while not self._closing.is_set():
            for member in (members := list(self._members)):
                self._report(member.poll(_POLL / len(members)))
            if len(members) > 1 and members[-1].joined:
                for older in members[:-1]:
                    older.leave()
                    self._members.remove(older)
        for member in self._members:
            member.leave()

    def _report(self, problem: KafkaError | None) -> None:
        if problem is None or problem.code() in _PASSES or problem.name() in self._reported:
            return
        self._reported.add(problem.name())
        name = self._pipeline.pipeline
        error = translate(problem, f"joining the group {drivers_group(name)!r}", rights=[on_groups(name)])
        if problem.code() == KafkaError.INVALID_SESSION_TIMEOUT:
            error.then = "set ledger.lease between group.min.session.timeout.ms and group.max.session.timeout.ms"
        self.problem = error
        self._trouble(error.what)


class _Member:
    """One member of the group: a consumer that never consumes."""

    def __init__(self, pipeline: Pipeline, holder: Holder) -> None:
        self.joined = False
        timeout = int(pipeline.ledger.lease * 1000)
        self._consumer = Consumer(
            client_options(pipeline.kafka)
            | {
                "client.id": holder.name,
                "group.id": drivers_group(pipeline.pipeline),
                "session.timeout.ms": timeout,
                "heartbeat.interval.ms": min(1000, timeout // 3),
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([pipeline.ledger.topic], on_assign=self._assigned)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.assign([])  # whatever the group assigns, nothing is read
        self.joined = True

    def poll(self, limit: float) -> KafkaError | None:
        """Stay a member; return the error, if there was one."""
        try:
            message = self._consumer.poll(limit)
        except KafkaException as error:
            cause = error.args[0]
            return cause if isinstance(cause, KafkaError) else None
        return message.error() if message is not None else None

    def leave(self) -> None:
        """Leave the group."""
        with contextlib.suppress(KafkaException):
            self._consumer.close()
