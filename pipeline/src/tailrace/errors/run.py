"""Errors of a running pipeline: its function, Spark's query, or Tailrace itself."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class RunError(TailraceError):
    """The pipeline stopped while it was running."""

    exit_code = 5


class FunctionFailed(RunError):
    """The pipeline's function raised while it processed a batch.

    The batch's open transactions were aborted, so its records are neither lost nor half delivered: they are read
    again at the next start. If the error comes from one record, the message has its topic, partition and offset.

    Fix the function. Or set `process.on_error: reject`: the record goes to the rejected topic, with its bytes and the
    exception, and the others are delivered; `tailrace rejected replay` brings it back once the function is fixed. Or
    exclude such records with a condition in `process.validate`, which sends them to the rejected topic too.

    Behind a shuffle neither can be: there the function has to catch the exception itself. If a part of the batch was
    delivered before, another function is refused (TR-302), and its page says how to go on.
    """

    code = "TR-401"
    title = "function failed"


class QueryFailed(RunError):
    """Spark stopped the query.

    The message has Spark's own reason. Nothing uncommitted was delivered; start the pipeline again and it continues
    with the same batch.
    """

    code = "TR-402"
    title = "query failed"


class CheckpointFailed(RunError):
    """The checkpoint of a stateful pipeline could not be read, or part of it was not written.

    The message names what is missing, or quotes the store's answer. The pipeline stops rather than continue from state
    that is not in the store. Nothing is lost or duplicated: at the next start the last batch is read again, what it had
    delivered is skipped, and its state is written again. Check that the store is reachable, that the bucket exists and
    that the credentials are valid: `tailrace doctor FILE` tests this.
    """

    code = "TR-405"
    title = "checkpoint failed"


class InvariantBroken(RunError):
    """Tailrace reached a state that must never occur.

    This is a bug in Tailrace. Nothing was committed after it was noticed. Please report it with the message.
    """

    code = "TR-403"
    title = "invariant broken"


class DrainUnfinished(RunError):
    """The pipeline was asked to stop, and the batch in progress did not finish within `batch.drain` seconds.

    The batch was abandoned, at that deadline or at a second signal. Sink partitions that had committed stay delivered,
    the others' transactions were aborted, and the plan in the ledger says what is missing: the next start delivers it,
    each record once. If this happens at every stop, batches take longer than the drain allows: raise `batch.drain` (and
    Kubernetes' terminationGracePeriodSeconds with it), or lower `batch.max_records`.
    """

    code = "TR-404"
    title = "drain incomplete"


class RuleBroken(RunError):
    """More records of a batch break a rule of `process.validate` than the rule's `ratio` allows.

    The rule has `severity: stop`. Usually a producer has changed what it sends, and the pipeline stops instead of
    moving everything to the rejected topic. The batch was counted before it was planned: none of its records was
    delivered or rejected, and the offsets stay where they were. The message names the rule, the counts and the ratio.

    Look at such records with `tailrace preview FILE --from TOPIC:PARTITION:OFFSET`. Then choose one:

    - The rule is wrong: mend its condition, or give it `severity: warn` or `reject`, and start again.
    - The records are wrong, and the producer is mended: let them go to the rejected topic. Set the rule's `ratio: 1`
      until they are read; for one run the variable `TAILRACE_PROCESS__VALIDATE__NAME__RATIO=1` does that, where NAME is
      the rule's name with `_` for every other sign. Later `tailrace rejected replay FILE` sends them again.
    - The records are worth nothing: skip them with `tailrace offsets set FILE`, to the offset where good ones begin.
      A stateful pipeline has only the first two choices.
    """

    code = "TR-406"
    title = "rule broken"
