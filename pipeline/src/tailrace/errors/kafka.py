"""Errors of the brokers and their topics: what Kafka denies, does not have, or has no longer."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class KafkaError(TailraceError):
    """The brokers or their topics are not as they must be."""

    exit_code = 3


class BrokerUnreachable(KafkaError):
    """No broker answered at the bootstrap address.

    Nothing was read or written. Check the address, the listener's protocol (`security.protocol`) and whether
    the brokers' advertised addresses can be reached from here; `tailrace doctor FILE` tries each in turn.
    """

    code = "TR-201"
    title = "broker unreachable"


class TopicUnknown(KafkaError):
    """A topic that the pipeline names does not exist.

    Tailrace creates its own topics (the rejected topic and the ledger) where the broker allows it, and never the
    pipeline's input and output topics: a typing error would otherwise become a topic.
    """

    code = "TR-202"
    title = "topic unknown"


class NotAuthorized(KafkaError):
    """The broker denied an operation to the pipeline's principal.

    The message names the right that is lacking, and the command by which an administrator grants it. A pipeline needs
    Read on its source topics; Write on its output topics and the rejected topic; Read and Write on the ledger; Read on
    the group `tailrace.<pipeline>` and on the groups with the prefix `tailrace.<pipeline>.`; Write on the transactional
    ids with that prefix. `tailrace doctor FILE` tries each. docs/how-to/secure-the-connection.md has the list.
    """

    code = "TR-203"
    title = "not authorized"


class RecordTooLarge(KafkaError):
    """A record is larger than the producer or the topic allows.

    The transaction that it belonged to was aborted, so nothing of this batch's sink partition was delivered and
    nothing is lost: the pipeline stops at this batch and takes it up again when it is started. Raise
    `sink.options: {message.max.bytes: …}` and the topic's `max.message.bytes`, or make the function emit less.
    """

    code = "TR-204"
    title = "record too large"


class OffsetsOutOfRange(KafkaError):
    """What the pipeline would read next is no longer in the topic.

    Either the topic's retention removed records before the pipeline read them, or the topic was deleted and
    created again. Tailrace never skips silently. With `source.on_data_loss: reset` the pipeline goes on where
    `auto.offset.reset` says (earliest or latest), and reports each gap with its offsets; with `stop` (the
    default) it stops here, and the decision is yours.
    """

    code = "TR-205"
    title = "offsets out of range"


class SourceChanged(KafkaError):
    """A source topic was deleted, or lost partitions, while the pipeline ran or was down.

    What was delivered stays delivered; what had not been read is gone with the topic. Restore the topic, or take
    it out of `source.topics`.
    """

    code = "TR-206"
    title = "source topic gone"


class NotAuthenticated(KafkaError):
    """The brokers did not let the client in.

    The password, the certificate or the mechanism is not what the listener at this address takes, or its certificate is
    not one that `ssl.ca.location` vouches for. The message has the client's own words. Nothing was read or written.
    Check that the port belongs to the listener of this `security.protocol`, and that nobody has changed the user.
    """

    code = "TR-208"
    title = "not authenticated"


class KafkaFailed(KafkaError):
    """Kafka answered with an error that Tailrace has no better word for.

    The message carries Kafka's own code and text. Nothing that was not committed has been delivered.
    """

    code = "TR-207"
    title = "Kafka failed"
