"""Errors of the brokers and their topics: refused, missing, or no longer available."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class KafkaError(TailraceError):
    """Kafka refused a request, or a broker or topic is missing."""

    exit_code = 3


class BrokerUnreachable(KafkaError):
    """No broker answered at the bootstrap address.

    Nothing was read or written. At the start, the message has the reason for each address: its host name cannot be
    resolved, the connection was refused, there was no connection (a firewall, for example), or the listener expects
    TLS. An address that accepts a connection but answers no request is often a listener with another
    `security.protocol`, or no broker at all. Check also whether the brokers' advertised addresses are reachable from
    here; `tailrace doctor FILE` tries each in turn.

    A read ends with it, too, if its own client takes records for deleted that the brokers have: the client reaches only
    a broker that is cut off from the others, or none any more. So does a batch of a stateful pipeline if what Spark was
    told of the topics leaves out what was read. The driver starts over with new clients, and asks until the brokers
    agree.
    """

    code = "TR-201"
    title = "broker unreachable"


class TopicUnknown(KafkaError):
    """A topic that the pipeline names does not exist.

    Tailrace creates its own topics (the rejected topic and the ledger) if the broker allows it, but never the
    pipeline's input and output topics: a typo would otherwise become a topic.
    """

    code = "TR-202"
    title = "topic unknown"


class NotAuthorized(KafkaError):
    """The broker denied an operation to the pipeline's principal.

    The message names the missing permission and the command with which an administrator grants it. A pipeline needs
    Read on its source topics; Write on its output topics and the rejected topic; Read and Write on the ledger; Read on
    the group `tailrace.<pipeline>` and on the groups with the prefix `tailrace.<pipeline>.`; Write on the transactional
    ids with that prefix. `tailrace doctor FILE` tries each.
    """

    code = "TR-203"
    title = "not authorized"


class RecordTooLarge(KafkaError):
    """A record is larger than the producer or the topic allows.

    Its transaction was aborted, so no record of this sink partition was delivered and none is lost: the pipeline
    stops at this batch and retries it at the next start. Raise `sink.options: {message.max.bytes: …}` and the
    topic's `max.message.bytes`, or make the function emit smaller records. A record must also fit into the producer's
    queue: beyond 128 MiB, raise `sink.options: {queue.buffering.max.kbytes: …}` too.
    """

    code = "TR-204"
    title = "record too large"


class OffsetsOutOfRange(KafkaError):
    """The next records that the pipeline would read are no longer in the topic.

    Either the topic's retention removed records before the pipeline read them, or the topic was deleted and
    created again. Tailrace never skips silently. With `source.on_data_loss: reset` the pipeline continues where
    `auto.offset.reset` says (earliest or latest), and reports each gap with its offsets; with `stop` (the
    default) it stops here, and the decision is yours.

    `tailrace backfill` also refuses a range whose beginning may have been deleted; `--partial` accepts what is left.
    One that retention has overtaken ignores `source.on_data_loss`: repeat it with `--partial` and another `--into`.
    """

    code = "TR-205"
    title = "offsets out of range"


class SourceChanged(KafkaError):
    """A source topic was deleted, or lost partitions, while the pipeline ran or was down.

    What was delivered stays delivered; unread records are gone with the topic. Restore the topic, or remove it
    from `source.topics`: the others continue. A stateful pipeline, whose checkpoint has the topic, needs
    `source.on_data_loss: reset` to continue without it.

    An open batch reads the topic even if it was removed: finish it with `source.on_data_loss: reset`, which counts the
    records that are gone, or give it up with `tailrace offsets set FILE … --give-up`. Of a stateful pipeline, neither
    is possible: check the output for what the batch delivered, then give it a new name and a new checkpoint.
    """

    code = "TR-206"
    title = "source topic gone"


class NotAuthenticated(KafkaError):
    """The client could not authenticate with the brokers.

    The listener at this address does not accept the password, the certificate or the mechanism, or no certificate
    authority in `ssl.ca.location` signed the listener's certificate. The message quotes the client's error. Nothing was
    read or written. Check that the port belongs to the listener of this `security.protocol`, and that the Kafka user
    has not changed.
    """

    code = "TR-208"
    title = "not authenticated"


class KafkaFailed(KafkaError):
    """Kafka answered with an error that has no code of its own in Tailrace.

    The message has Kafka's own code and text. Nothing uncommitted has been delivered.

    If it says that the brokers have lost the end of a transaction: Kafka 4.3 and 4.4 do so in each partition without
    a leader (KAFKA-20734), as while all of its in-sync replicas are away. First stop the pipeline, and what starts it
    again. `kafka-transactions.sh … find-hanging --max-transaction-timeout 0 --topic TOPIC` shows where a transaction
    is open; ask it for the sink's topics and for `__consumer_offsets`. If its records are not visible in the sink,
    abort it in all these partitions with `kafka-transactions.sh … abort`: the next start delivers that part of the
    batch again. If they are visible, abort it in `__consumer_offsets`, and go on with `tailrace offsets set FILE …
    --give-up`: behind the batch for the source partitions whose outputs are in the sink, and for no others. A
    stateful pipeline gets a new name, a new checkpoint and its offsets.
    """

    code = "TR-207"
    title = "Kafka failed"
