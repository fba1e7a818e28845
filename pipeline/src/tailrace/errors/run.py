"""Errors of a pipeline that was under way: its function, Spark's query, or Tailrace itself."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class RunError(TailraceError):
    """The pipeline stopped while it ran."""

    exit_code = 5


class FunctionFailed(RunError):
    """The pipeline's function raised while it processed a batch.

    The batch's open transactions were aborted, so its records are neither lost nor half delivered: they are read
    again when the pipeline is started again. Mend the function, or declare what it cannot take with
    `process.validate`, which sends such records to the rejected topic.
    """

    code = "TR-401"
    title = "function failed"


class QueryFailed(RunError):
    """Spark stopped the query.

    The message carries Spark's own reason. Nothing that was not committed has been delivered; start the pipeline
    again and it goes on with the same batch.
    """

    code = "TR-402"
    title = "query failed"


class CheckpointFailed(RunError):
    """The checkpoint of a stateful pipeline could not be read, or a part of it was not written.

    The message names what is missing, or what the store answered. The pipeline stops before it goes on from state that
    is not on the store. Nothing is lost or doubled: at the next start the last batch is read again, what it had
    delivered is skipped, and its state is written anew. See that the store can be reached, that the bucket exists and
    that the credentials are valid: `tailrace doctor FILE` tries it.
    """

    code = "TR-405"
    title = "checkpoint failed"


class InvariantBroken(RunError):
    """Tailrace found itself in a state that must not exist.

    This is a defect of Tailrace. Nothing was committed after it was noticed. Please report it with the message.
    """

    code = "TR-403"
    title = "invariant broken"


class DrainUnfinished(RunError):
    """The pipeline was told to stop, and the batch under way did not finish within `batch.drain` seconds.

    It was given up, or a second signal asked for that. Sink partitions that had committed stay delivered, the others'
    transactions were aborted, and the plan in the ledger says what is missing: the next start delivers it, each record
    once. If this happens at each stop, batches take longer than the drain may: raise `batch.drain` (and Kubernetes'
    terminationGracePeriodSeconds with it), or lower `batch.max_records`.
    """

    code = "TR-404"
    title = "drain unfinished"
