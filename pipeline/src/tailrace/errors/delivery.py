"""Errors that protect exactly-once delivery: the pipeline stops rather than lose or duplicate a record."""

from __future__ import annotations

from tailrace.errors.root import TailraceError

_AGAIN = "start the pipeline again (tailrace run FILE); if that repeats: tailrace doctor FILE"


class DeliveryError(TailraceError):
    """Continuing could lose or duplicate a record, so the pipeline stopped."""

    exit_code = 4


class DriverFenced(DeliveryError):
    """Another driver has taken over this pipeline.

    Kafka lets only one driver of a pipeline write plans: the one that started last. This one stops. What it had
    committed stays; the other driver writes the remaining records. If you did not start a second driver on
    purpose, look for it: two deployments with the same pipeline name fence each other forever.
    """

    code = "TR-301"
    title = "fenced by another driver"
    exit_code = 7  # distinct, so that a supervisor can leave a fenced driver stopped


class CutChanged(DeliveryError):
    """An open batch cannot be divided into the same sink partitions again.

    Some sink partitions of the batch may already be delivered. A replay is exact only if each sink partition gets the
    same rows as before, so once a batch is delivered in part, Tailrace refuses another shuffle in the function, and
    another number of partitions behind it. If the batch is behind a shuffle, or of a stateful pipeline, it also
    refuses another `source.format`, `source.isolation`, schema, `process.validate` or function, and behind a shuffle
    a session with another time zone or other `spark.sql.*` settings that may decide what an expression gives: a
    record could move from output to rejected, or to another sink partition, and end up in neither. Start once with
    the old settings, let the pipeline finish the batch (`tailrace run FILE --batch`), then change them. If they
    cannot finish it, because the function raises, say, check the output for what the batch delivered, and give it up:
    `tailrace offsets set FILE … --give-up`. A stateful pipeline gets a new name, a new checkpoint and its offsets
    from a file instead (`tailrace offsets export FILE offsets.json`, corrected, and `offsets: {store: file, path:
    offsets.json}`).

    Spark chooses between a broadcast, which needs no shuffle, and a shuffle by the size of the joined table. A table
    that has crossed `spark.sql.autoBroadcastJoinThreshold` is joined as before: Tailrace tries the joins without any
    broadcast by size, and with each. If several tables need different answers, set that threshold under `spark` so that
    the batch is joined as it was begun. Let `broadcast(table)` or `table.hint("merge")` decide from then on.

    `exactly_once` also refuses the branches of a union in another order. If that is the order of a set of names, which
    differs in each process, start with `PYTHONHASHSEED=0`, then 1, 2 and so on until the batch is finished; then use a
    list. The same holds for a condition or a key that is built from a set, but for `isin`, whose order does not count.

    `format("tailrace")` has no plan and compares rows. It refuses a task whose rows, or some of them, another task
    has delivered in an earlier run: Spark has numbered its tasks differently, or made fewer or more of them. The task
    commits nothing; other tasks of the batch may have been delivered. If the number of tasks has changed, by
    `spark.sql.adaptive.enabled`, `minPartitions` or `repartition`, change it back and start again. Otherwise check
    the output for what was delivered, then continue with another checkpoint folder and another `id`, from the
    `startingOffsets` that you choose. `exactly_once` and `replay: by-number` cannot finish the open batch.
    """

    code = "TR-302"
    title = "replay would differ"


class MarkerConflict(DeliveryError):
    """A marker in the ledger contradicts what is about to be written.

    The marker of a sink partition says that another plan wrote the batch, or that a later batch is already
    written. Either two pipelines share one name, or the ledger's groups were changed by hand, or an abandoned
    driver is still running. Nothing was written. A batch that was given up counts as written: tasks of it that still
    run are refused. `--give-up` gives a batch up. So does a start with other code behind a shuffle, if nothing of
    the batch was delivered.

    If two pipelines share one name, rename one of them. If the ledger was restored from an older copy, restore the
    newest. If neither applies, inspect the output topic yourself, then set where to continue with `tailrace offsets
    set FILE … --give-up`; batch numbers then continue above those in the markers.

    A stateful pipeline has its positions in its checkpoint, where they cannot be set: give it a new name and a new
    checkpoint, and set its start with the section `offsets` or `auto.offset.reset`.

    A query with `format("tailrace")` or `exactly_once` may have met the marker of another one with its `id`, of an
    older or newer copy of its checkpoint folder, or of the other value of the option `replay`. Go back to the folder
    and the options that it used last. If that cannot be, check the output for what was delivered, then continue with
    another checkpoint folder and another `id`, from the `startingOffsets` that you choose.
    """

    code = "TR-303"
    title = "marker conflict"


class CommitInDoubt(DeliveryError):
    """The outcome of a transaction's commit is unknown.

    The producer was destroyed. The next attempt takes a new epoch, which settles the transaction one way or the
    other, reads the marker, and then either skips or writes. The task is tried again, so you see this error only
    when the retries are exhausted: the brokers did not answer for minutes.
    """

    code = "TR-304"
    title = "commit in doubt"
    usual = _AGAIN


class Contested(CommitInDoubt):
    """Another attempt at the same sink partition has taken its transactional id.

    The next attempt reads the marker, and then either skips or writes. A driver that was suspended and came to itself
    next to its successor takes the ids for a moment; so the driver that leads delivers such a batch again, up to three
    times. You see this error only if something keeps taking the pipeline's transactional ids: a second deployment with
    the same pipeline name, or a tool that aborts its transactions.
    """

    code = "TR-315"
    title = "transactional id taken"
    usual = _AGAIN


class LedgerUnusable(DeliveryError):
    """The ledger topic is missing, too small, or holds something that Tailrace did not write.

    The ledger needs at least as many partitions as any pipeline has sink partitions, `cleanup.policy=compact`, and
    no other writers. Tailrace creates it if the broker allows; otherwise create it as the message describes.
    """

    code = "TR-305"
    title = "ledger unusable"


class ProgressMissing(DeliveryError):
    """The plan or the markers that say what was delivered are gone.

    There are four cases. This pipeline has markers or offsets but no plan: the plan was deleted, or the ledger topic
    was recreated. Or the offsets of its group were committed with a later plan than the ledger's last one: the ledger
    was restored from an older backup, or `ledger.topic` was changed back. Or a batch was planned and not recorded as
    done, and the markers that would say how much of it was delivered are missing and may have expired: they are offsets
    of a consumer group, which the brokers delete after `offsets.retention.minutes`. Or Spark's checkpoint lacks a batch
    that was recorded as done, so a stateful pipeline would deliver it again, and its markers have expired. Continuing
    would replay or skip records, so Tailrace does not guess.

    A marker may also expire while a start waits, for an open transaction in its source or for executors. If it was read
    before and a task no longer finds it, the task writes nothing. So it does if it finds none and the batch was planned
    as long ago as markers are kept: while its driver was suspended, another one may have delivered the batch. Start the
    pipeline again; the start says if a person must decide.

    Choose one:

    - Restore the ledger, or configure the ledger topic that was used last.
    - Inspect the output topic yourself, then set where to continue with `tailrace offsets set FILE … --give-up`: at
      the open batch's start (its records may be duplicated) or at its end (they may be missing). `tailrace offsets
      show FILE` prints both, as `begins` and `next`. If the ledger has no plan, `next` is where the last batch began
      that the brokers know of, and nothing tells where it ended.
    - Give the pipeline a new name and set its start with the section `offsets` or `auto.offset.reset`. A stateful
      pipeline, whose positions are in its checkpoint, has only this choice, and needs a new checkpoint too.
    """

    code = "TR-306"
    title = "progress missing"


class InputCutOff(DeliveryError):
    """A task's input was truncated because Spark cancelled the task while it was writing.

    The transaction was aborted and Spark retries the task. You see this next to the error that made Spark cancel
    the task: another task failed, or a driver or an executor went away.
    """

    code = "TR-308"
    title = "input truncated"
    usual = _AGAIN


class CheckpointMismatch(DeliveryError):
    """The checkpoint folder of a stateful pipeline does not match what the ledger says was delivered.

    The state and the markers must come from the same run. Point `checkpoint` to the folder that the pipeline used
    before. If that folder is gone, the state is gone too: give the pipeline a new name to start over.
    """

    code = "TR-307"
    title = "checkpoint mismatch"


class OffsetStoreUnusable(DeliveryError):
    """The store of the input offsets cannot be reached, or what it holds cannot be read as offsets.

    On a pipeline's first start the store says where to begin, so the pipeline does not start without it. Later the
    ledger has the positions; a store that fails is reported and tried again with the next batch. A ZooKeeper node
    holds `partition:offset,partition:offset`; a file holds the document that `tailrace offsets export` writes.

    `offsets.from: tailrace.NAME` is refused, too, if NAME's last batch was not noted as done, and its markers have
    expired or its ledger is older than its output: its beginning would deliver a part again, and its end might leave
    one out.
    """

    code = "TR-311"
    title = "offset store unusable"


class PipelineRunning(DeliveryError):
    """The pipeline's offsets cannot be changed, or taken by another, while it runs.

    The running driver keeps its own position and would not notice. Stop it, change the offsets, start it again.

    If `offsets.from` names the group of another pipeline, that one is meant: it may be finishing a batch, which the new
    pipeline would deliver again. Stop it, its standbys too; a driver that was killed counts as running for
    `ledger.lease` seconds. Then start the new pipeline; a supervisor that repeats the start does that by itself.
    """

    code = "TR-312"
    title = "pipeline is running"


class BatchOpen(DeliveryError):
    """The pipeline's offsets cannot be changed, or taken by another, while a batch is delivered only in part.

    Moving the offsets now would lose the undelivered records of the batch, or duplicate the delivered ones.
    `tailrace run FILE --batch` finishes the batch. Use the configuration that planned it, without topics that were
    added since: the command goes on to the end of all source topics. To skip what waits there, run `tailrace run FILE`
    instead, and stop it once it reports the open batch: what it delivers until then is delivered, and the rest can be
    skipped. If the batch cannot be finished, `--give-up` abandons it as it is: what was delivered stays, and the new
    offsets alone say what is read next.

    If `offsets.from` names the group of another pipeline, its batch is meant, and FILE is its configuration. If it
    cannot be finished, check the output, and begin where you say: `tailrace offsets export FILE offsets.json`, correct
    the offsets, and start the new pipeline with `offsets: {store: file, path: offsets.json}` instead of `from`. If it
    was started before, the ledger has recorded where it begins, and `tailrace offsets import NEWFILE offsets.json`
    changes that.
    """

    code = "TR-313"
    title = "a batch is open"


class InputUnread(DeliveryError):
    """The function stopped before it had read all of its rows.

    A batch's input must be read completely, or records that were rejected after the point where the function stopped
    would be lost. The transaction was aborted. A function that takes an iterator of Arrow batches must exhaust it; to
    drop records, filter them.

    Spark itself reads no row for an inner join with an empty table that it broadcasts, but only if it runs the join
    without generated code: if the rows have more columns than `spark.sql.codegen.maxFields` (100), or the code would be
    too large. In the first case raise the setting, under `spark` in the pipeline's file. In the second, give the table
    `.hint("merge")`.

    The same error ends a task attempt whose rejected records the gateway had forgotten: no conversation touched it for
    a day, or the run has begun a later batch meanwhile.
    """

    code = "TR-309"
    title = "input not fully read"


class PlanOfAnother(DeliveryError):
    """The last plan in the ledger was made for another sink or for another source topic of the same name.

    Either two pipelines share one name, or the pipeline's sink was changed, or a source topic was deleted and created
    again. In the first case one pipeline would deliver the other's open batch into its own sink; in the last, it would
    skip the first records of the new topic, because offsets of the old topic mean nothing there. So the pipeline stops
    before it reads or writes. The message names both sides and the command to continue.
    """

    code = "TR-310"
    title = "plan for another sink or source"


class VerdictChanged(DeliveryError):
    """In a replay of a batch, a rejected record is now accepted, or an accepted one rejected.

    The function shuffles, so rejected records are committed before the outputs. Reading the batch again must give each
    record the same verdict, or the record would be delivered twice or not at all. A validator that depends on the
    current time, or a schema registry that was down, can change a verdict. Restore the registry, the schema and the
    code that the batch began with and start again, or abandon the batch with `tailrace offsets set FILE … --give-up`.
    With source.on_data_loss: reset, a deleted record has no other verdict, nor has one that Kafka has removed from a
    compacted topic. But a marker lists several hundred rejected records at most. If a task has rejected more, the
    message says `modulo 128`, and a removed record cannot be told from another verdict: if the topic is compacted and
    nothing else has changed, give the batch up.

    A stateful pipeline, whose positions are in its checkpoint, cannot abandon a batch: give it a new name and a new
    checkpoint, and set its start with the section `offsets` or `auto.offset.reset`.
    """

    code = "TR-314"
    title = "verdict changed"
