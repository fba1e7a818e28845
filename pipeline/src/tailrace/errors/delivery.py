"""Errors that keep delivery exact: where going on could lose or duplicate a record, the pipeline stops."""

from __future__ import annotations

from tailrace.errors.root import TailraceError

_AGAIN = "start the pipeline again (tailrace run FILE); if that repeats: tailrace doctor FILE"


class DeliveryError(TailraceError):
    """Going on could lose or duplicate a record, so the pipeline stopped."""

    exit_code = 4


class DriverFenced(DeliveryError):
    """Another driver has taken over this pipeline.

    Kafka lets one driver of a pipeline write its plans: the one that started last. This one stops by itself; what
    it had committed stays, what it had not the other one writes. If you did not start a second one on
    purpose, look for it: two deployments with the same pipeline name fence each other for ever.
    """

    code = "TR-301"
    title = "fenced by another driver"
    exit_code = 7  # of its own: who restarts drivers may leave this one alone


class CutChanged(DeliveryError):
    """A batch that was begun cannot be cut into the same sink partitions again.

    Some sink partitions of the batch may be delivered already. A replay is exact only if each sink partition
    reads the same source ranges as before, so a changed number of `partitions` (read, process or write) or another
    shuffle in the function is refused while a batch is open. So is another `source.format`, schema or
    `process.validate`: a record could change sides between output and rejected, and be in neither. Start once with the
    old settings, let it finish the batch (`tailrace run FILE --batch`), then change them.
    """

    code = "TR-302"
    title = "the cut has changed"


class MarkerConflict(DeliveryError):
    """A marker in the ledger contradicts what is about to be written.

    The marker of a sink partition says that a batch was written by another plan, or that a later batch is
    written already. Either two pipelines share one name, or the ledger's groups were changed by hand, or a driver
    that was given up is still running. Nothing was written.

    Two pipelines of one name: rename one of them. A ledger that was restored from an older copy: restore the newest.
    Where neither can be, look at the output topic yourself, then say where to go on with `tailrace offsets set FILE …
    --give-up`; the batches' numbers go on beyond those that the markers know.
    """

    code = "TR-303"
    title = "marker conflict"


class CommitInDoubt(DeliveryError):
    """The outcome of a transaction's commit is unknown.

    The producer was destroyed. The next attempt takes a new epoch, which settles the transaction one way or the
    other, reads the marker, and then either skips or writes. Spark retries the task; you see this only when the
    retries are used up, which means that the brokers did not answer for minutes.
    """

    code = "TR-304"
    title = "commit in doubt"
    usual = _AGAIN


class LedgerUnusable(DeliveryError):
    """The ledger topic is missing, too small, or holds something that Tailrace did not write.

    The ledger needs as many partitions as any pipeline has sink partitions, `cleanup.policy=compact`, and nobody
    else who writes to it. Tailrace creates it where the broker allows; otherwise create it as the message says.
    """

    code = "TR-305"
    title = "ledger unusable"


class ProgressMissing(DeliveryError):
    """The plan or the markers that say what was delivered are gone.

    Either there are markers or offsets of this pipeline, but no plan: the plan was deleted, or the ledger topic was
    made anew. Or a batch was planned and not noted as done, and markers that would say how much of it was delivered
    are missing, at a time when they may have expired: they are offsets of a consumer group, and the brokers forget
    those after `offsets.retention.minutes`. Going on would replay or skip records, so Tailrace does not guess.

    The choices: restore the ledger. Or look at the output topic yourself, then say where to go on with `tailrace
    offsets set FILE … --give-up`: from the open batch's beginning (its records may come twice) or from its end (they
    may be missing). `tailrace offsets show FILE` has both positions. Or give the pipeline a new name and set its
    start with the section `offsets` or `auto.offset.reset`; for a stateful pipeline, whose positions are in its
    checkpoint, that is the only way, and the checkpoint is a new one, too.
    """

    code = "TR-306"
    title = "progress missing"


class InputCutOff(DeliveryError):
    """A task's rows ended before their end, because Spark gave the task up while it was writing.

    The transaction was aborted and Spark tries the task again. You see this beside the error that made Spark give
    the task up: another task that failed, a driver or an executor that went away.
    """

    code = "TR-308"
    title = "input cut off"
    usual = _AGAIN


class CheckpointMismatch(DeliveryError):
    """The checkpoint folder of a stateful pipeline does not belong to what the ledger says was delivered.

    Its state and the markers must be of the same run. Point `checkpoint` to the folder that the pipeline used
    before; if it is gone, the state is gone too: give the pipeline a new name to start afresh.
    """

    code = "TR-307"
    title = "checkpoint mismatch"


class OffsetStoreUnusable(DeliveryError):
    """The store of the input offsets cannot be reached, or holds something that is no offsets.

    At a pipeline's first start the store says where to begin, so nothing begins without it. Later the ledger knows,
    and a store that fails is reported and tried again with the next batch. ZooKeeper's nodes hold
    `partition:offset,partition:offset`; the file holds the document that `tailrace offsets export` writes.
    """

    code = "TR-311"
    title = "offset store unusable"


class PipelineRunning(DeliveryError):
    """The pipeline's offsets cannot be changed while it runs.

    The running driver knows where it is, and would not notice. Stop it, change the offsets, start it again.
    """

    code = "TR-312"
    title = "pipeline is running"


class BatchOpen(DeliveryError):
    """The pipeline's offsets cannot be changed while a batch is delivered in part, or not known to be delivered.

    Moving the offsets now would lose what is missing of it, or deliver again what is there. `tailrace run FILE
    --batch` finishes it. Where that is refused, `--give-up` leaves it as it is: what was delivered stays, and the
    new offsets alone say what is read next.
    """

    code = "TR-313"
    title = "a batch is open"


class InputUnread(DeliveryError):
    """The function stopped before it had read all of its rows.

    A batch's records are read to their end, or records that were rejected behind the place where the function stopped
    would be lost. The transaction was aborted. A function that takes an iterator of Arrow batches must exhaust it; to
    leave records out, filter them.
    """

    code = "TR-309"
    title = "input not read to its end"


class PlanOfAnother(DeliveryError):
    """The last plan in the ledger was made for another sink or for another source topic of the same name.

    Either two pipelines share one name, or the pipeline's sink was changed, or a source topic was deleted and created
    again. The first would deliver the other's open batch into its own sink; the last would skip the first records of
    the new topic, because offsets of the old one mean nothing in it. So the pipeline stops before it reads or writes.
    The message names both sides and the command that goes on.
    """

    code = "TR-310"
    title = "plan of another sink or source"


class VerdictChanged(DeliveryError):
    """A record that was rejected is accepted now, or the other way round, while its batch is delivered again.

    The function shuffles, so rejected records are committed before the outputs. Reading the batch again must give each
    record the same verdict, or it would come out twice or not at all. A validator that asks for the time, or a schema
    registry that was down, gives another one. Bring back what was there when the batch began (the registry, the
    schema, the code) and start again, or give the batch up with `tailrace offsets set FILE … --give-up`.
    """

    code = "TR-314"
    title = "verdict changed"
