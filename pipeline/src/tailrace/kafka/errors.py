"""Kafka's errors: which are retriable, which mean fencing, and which Tailrace error each becomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException

from tailrace import errors
from tailrace.kafka.rights import Resource, Right

_RETRIABLE = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know yet up to where it may answer
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,  # the client knows an older leader than the broker; below: a newer one
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._WAIT_COORD,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,  # the client has replaced the connection on which the request was waiting
    }
)
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.FENCED_INSTANCE_ID}
)
# Reports of records that were dropped because their transaction had already failed: that error says more.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Resource.TOPIC,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Resource.GROUP,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Resource.CLUSTER,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Resource.TRANSACTIONAL_ID,
}
STRANGER = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
# Those that waiting may mend: a partition without a leader gets one once its broker is back.
_UNREACHABLE = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE}
)
UNKNOWN_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
# Reports of records that the brokers refuse for what they hold, and of those that were sent together with them.
INVALID = frozenset({KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD})
_DURATION = (
    "lower sink.options: transaction.timeout.ms to what the brokers allow, but not below 30000, which the driver's own "
    "transactions need; or raise their transaction.max.timeout.ms"
)
_CLOCK = "correct the clock of this machine: the brokers refuse records from too far in the future or the past"
_HOUR = 3_600_000  # milliseconds
_NEAR = 600_000  # topics allow more than this difference from the brokers' clock
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


def code_of(error: KafkaException | KafkaError) -> int:
    """Return Kafka's number of an error."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    return int(cause.code()) if isinstance(cause, KafkaError) else KafkaError._FAIL


def is_fenced(error: KafkaException) -> bool:
    """Return whether the transactional id has a newer owner."""
    return code_of(error) in _FENCED


def is_retriable(error: KafkaException) -> bool:
    """Return whether the same request may succeed a moment later."""
    return code_of(error) in _RETRIABLE


def is_denied(error: KafkaException | KafkaError) -> bool:
    """Return whether a right is missing."""
    return code_of(error) in _DENIED


def translate(
    error: KafkaException | KafkaError, doing: str, *, kept: str = "", rights: Sequence[Right] = ()
) -> errors.TailraceError:
    """Return the Tailrace error for Kafka's; `doing` is what was tried, with values, and `rights` what it needs."""
    code = code_of(error)
    cause = error.args[0] if isinstance(error, KafkaException) else error
    name = cause.name() if isinstance(cause, KafkaError) else type(cause).__name__
    what = f"{doing}: {name} ({cause.str() if isinstance(cause, KafkaError) else cause})"
    if code in _DENIED:
        return denied(what, [right for right in rights if right.resource is _DENIED[code]], kept)
    if code in STRANGER:
        return stranger(what, kept)
    if code in UNKNOWN_TOPIC:
        return errors.TopicUnknown(what, kept=kept, then="create the topic, or correct its name")
    if code in _TOO_LARGE:
        return errors.RecordTooLarge(what, kept=kept, then="raise message.max.bytes and the topic's max.message.bytes")
    if code in _UNREACHABLE:
        return errors.BrokerUnreachable(what, kept=kept, then="tailrace doctor FILE")
    advice = {KafkaError.INVALID_TIMESTAMP: _CLOCK, KafkaError.INVALID_TRANSACTION_TIMEOUT: _DURATION}
    if code in advice:
        return errors.KafkaFailed(what, kept=kept, then=advice[code])
    return errors.KafkaFailed(what, kept=kept, then="tailrace doctor FILE")


def invalid(
    error: KafkaError, topic: str, times: tuple[int, int] | None, now: int, *, kept: str = ""
) -> errors.KafkaFailed:
    """Return the error for rows that the brokers found invalid.

    `times` are the earliest and the latest timestamp that rows of the topic had of their own, in milliseconds like
    `now`. The brokers do not say which rows they mean.
    """
    what = f"writing to topic {topic!r}: {error.name()} ({error.str()})"
    then = []
    if times is not None:
        what += f"; the timestamps of its rows reach from {_moment(times[0])} to {_moment(times[1])}, now it is "
        what += _moment(now)
        then = [
            f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {option}={value}"
            for option, value in _timestamp_limits(*times, now)
        ]
        then += ["let the function return another column `timestamp`, or none"]
    if error.code() != KafkaError.INVALID_TIMESTAMP:
        then += ["give every row a key, if the topic is compacted"]
    if times is None and error.code() == KafkaError.INVALID_TIMESTAMP:
        then = [_CLOCK]
    return errors.KafkaFailed(what, kept=kept, then="; or ".join(then))


def _timestamp_limits(first: int, last: int, now: int) -> list[tuple[str, int]]:
    """Return the settings of a topic that bound these timestamps, with values that allow them for a day."""
    found = []
    if last - now > _NEAR:
        found += [("message.timestamp.after.max.ms", (last - now) // _HOUR * _HOUR + 2 * _HOUR)]
    if now - first > _NEAR:
        found += [("message.timestamp.before.max.ms", (now - first) // _HOUR * _HOUR + 25 * _HOUR)]
    return found


def _moment(milliseconds: int) -> str:
    """Format a timestamp in UTC; one beyond the calendar as its number."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms since 1970"


def denied(what: str, rights: Sequence[Right], kept: str = "") -> errors.NotAuthorized:
    """Return the error that names the missing rights, and the command that grants the first one."""
    if not rights:
        return errors.NotAuthorized(what, kept=kept, then="tailrace doctor FILE")
    lacking = " or ".join(map(str, rights))
    return errors.NotAuthorized(f"{what}; lacking: {lacking}", kept=kept, then=rights[0].command)


def stranger(what: str, kept: str = "") -> errors.NotAuthenticated:
    """Return the error for a client that the brokers did not authenticate."""
    return errors.NotAuthenticated(
        what, kept=kept, then="check security.protocol, sasl.* and ssl.* of kafka.options, then: tailrace doctor FILE"
    )
