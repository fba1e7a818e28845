"""A stateful pipeline's Spark checkpoint: whether it matches the ledger, and whether what Spark wrote exists.

Spark's checkpoint manager for object stores needs no rename, but only logs a failed PUT. So the driver checks after
each batch, and before it plans the next: docs/decisions/0012-checkpoints-on-an-object-store.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.catalyst import tree
from tailrace.errors import CheckpointMismatch, InvariantBroken
from tailrace.kafka.clients import TopicPartitions
from tailrace.progress.plan import BatchId, Place
from tailrace.progress.stream_plan import StreamPlan, offsets_of, replace_offsets
from tailrace.spark_stream import beginning, executed
from tailrace.spark_stream.executed import Operator
from tailrace.spark_stream.hadoop_errors import KEPT, Asking, failed, lacking
from tailrace.spark_stream.storage import local, on_s3

_OWN = "point `checkpoint` to the folder that this pipeline used before; `tailrace explain TR-307`"
_UNPLANNED = "removing a batch that was never planned"
_PROBES = 8  # concurrent requests to the store
_TEMPORARY = re.compile(r"\.0\.[0-9a-f-]{36}\.tmp")
_STATE_FILE = re.compile(r"(\d+)(?:_[^.]+)?\.(?:changelog|zip|delta|snapshot)")


class Checkpoint:
    """The folder, on a disk or on an object store, read through Hadoop as Spark reads it."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, base: Path) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._remote = on_s3(pipeline)
        place = pipeline.checkpoint
        self.place = place.rstrip("/") if self._remote else local(base / place.removeprefix("file:"))
        self._known: tuple[Operator, ...] | None = None
        self._done: int | None = None
        self._pool = ThreadPoolExecutor(_PROBES, "checkpoint")

    # -- the start ---------------------------------------------------------------------------------

    def check(self, plan: StreamPlan | None, present: Collection[Place]) -> None:
        """Refuse a folder that does not match the ledger; remove what an unplanned or unfinished batch left.

        `present` are the source's partitions.
        """
        offsets, commits = self._batches("offsets"), self._batches("commits")
        last, known = max(offsets, default=-1), plan.batch if plan else -1
        if not known <= last <= known + 1 or any(batch > known for batch in commits):
            raise CheckpointMismatch(
                f"the ledger ends with batch {known}, and the checkpoint {self.place} ends with batch {last}",
                kept="nothing was read or written",
                then=_OWN,
            )
        if plan is not None and plan.query:
            self._check_query(plan.query)
        if plan is not None and last > known:  # Spark would judge again what it was told then, and not ask again
            if self._remote and known not in commits:  # its note is lost; it had returned, or there would be no entry
                self._replace(f"commits/{known}", beginning.note_before(self._read(f"offsets/{last}")), _UNPLANNED)
                commits.append(known)
            with self._asking(_UNPLANNED):
                self._files.delete(self._path(f"offsets/{last}"), False)
            last = known
        if plan is not None and plan.batch == last and last not in commits:
            if self._read(f"offsets/{last}") != plan.entry:  # of a driver that was overtaken, or of a restored folder
                self._replace(f"offsets/{last}", plan.entry, f"before batch {last} is finished")
            self._keep_beginning(plan, present)
        if plan is None and not commits:  # it may have begun elsewhere, and with other code
            self._remove_unplanned()
        elif self._remote:
            self._clear(last + 1 if last in commits else last)

    def _remove_unplanned(self) -> None:
        """Remove what Spark has written of a first batch that the ledger does not know, and nothing else."""
        if not any(map(self._exists, ("metadata", "offsets/0", beginning.INITIAL, "state/0/_metadata/metadata"))):
            return
        with self._asking(_UNPLANNED):
            names = ["offsets/0", "offsets/.0.crc", "sources/0", *(f"state/{n}" for n in self._batches("state"))]
            for log in ("offsets", "commits"):  # Spark leaves these if it is stopped while it writes, and refuses them
                names += [f"{log}/{name}" for name in self._names(log) if _TEMPORARY.fullmatch(name)]
            for name in names:
                self._files.delete(self._path(name), True)

    def _check_query(self, known: str) -> None:
        """Refuse the folder of another query, whose offsets and state are not this pipeline's.

        Spark would give a folder that has lost its query's id a new one; it gets back the one that the ledger names.
        """
        if not self._exists("metadata"):
            self._write("metadata", json.dumps({"id": known}))
            return
        try:
            found = json.loads(self._read("metadata"))["id"]
        except (ValueError, KeyError, TypeError):  # Spark cannot read it either, and says so
            return
        if found != known:
            raise CheckpointMismatch(
                f"the last batch in the ledger was planned by the query {known}, and the checkpoint {self.place} "
                f"belongs to the query {found}",
                kept="nothing was read or written",
                then=_OWN,
            )

    def _keep_beginning(self, plan: StreamPlan, present: Collection[Place]) -> None:
        """Make sure that Spark begins an open batch where it was planned, in each partition that there still is."""
        entry = self._read(f"offsets/{plan.batch}")
        every = beginning.planned(plan, entry)
        begins = {place: offset for place, offset in every.items() if place in present}
        name = beginning.told_by(plan.batch)
        found = self._read(name) if self._exists(name) else ""
        if not found and plan.batch > 0:  # Spark refuses to continue, and names the entry
            return
        if plan.is_empty_beginning:  # a start that was to begin it elsewhere may have told the ledger only
            before = {place: offset for place, offset in beginning.named(found).items() if place in every}
            kept = beginning.completed("", before | begins)
        else:
            kept = beginning.completed(found, begins)
        if kept != found:
            self._replace(name, kept, f"before batch {plan.batch} is finished")

    def noted(self, batch: BatchId) -> bool:
        """Return whether Spark has noted a batch as done; it then continues with the next one."""
        return batch in self._batches("commits")

    def lacks(self, batch: BatchId) -> bool:
        """Return whether the folder shows that a batch was planned, and not that it is delivered."""
        planned = self._batches("offsets")
        # On a store that loses notes, the next entry proves as much: Spark writes it after the note.
        proved = self.noted(batch) or (self._remote and batch + 1 in planned)
        return batch in planned and not proved

    def ends(self, batch: BatchId) -> dict[Place, int]:
        """Return where Spark continues after a batch that it has noted."""
        return offsets_of(self._read(f"offsets/{batch}"))

    def fit(self, leaves: int) -> bool:
        """Adapt entries to a query that reads the source in another number of places; return whether any were.

        Spark's offset log has a line for each place, and Spark refuses a log with another number of lines. Another
        function may read its records once more, and version 0.1 read them twice, once for good and once for rejected
        ones. Spark looks only at the last two entries.
        """
        batches, changed = sorted(self._batches("offsets"))[-2:], False
        for batch in batches:
            version, metadata, *stored = self._read(f"offsets/{batch}").strip().splitlines()
            if len(stored) != leaves and len(set(stored)) == 1:
                self._write(f"offsets/{batch}", "\n".join([version, metadata, *stored[:1] * leaves]))
                changed = True
        return changed

    def move(self, batch: BatchId, positions: TopicPartitions) -> None:
        """Let Spark continue at these positions after a batch that it has noted.

        A first batch without records need not be noted.
        """
        when = "before other offsets are read"
        if batch == 0:  # so that a batch of no records that Spark brings again has none
            self._replace(beginning.INITIAL, beginning.completed("", positions), when)
        self._replace(f"offsets/{batch}", replace_offsets(self._read(f"offsets/{batch}"), positions), when)

    def _clear(self, needed: int) -> None:
        """Remove state of versions after the one Spark resumes from: checks for new files must not find old ones."""
        fs, state = self._files, self._path("state")
        with self._asking("looking for state of an unfinished batch"):
            if not fs.exists(state):
                return
            files = fs.listFiles(state, True)
            while files.hasNext():
                path = files.next().getPath()
                found = _STATE_FILE.fullmatch(path.getName())
                if found is not None and int(found[1]) > needed:
                    fs.delete(path, False)

    # -- each batch --------------------------------------------------------------------------------

    def entry(self, batch: BatchId) -> str:
        """Return a batch's offset log entry from the store; raise CheckpointFailed if an expected file is missing."""
        if not self._remote:
            return self._read(f"offsets/{batch}")
        # From batches of an earlier run, Spark needs no more than what it found at the start.
        needed = f"commits/{batch - 1}" if self._done == batch - 1 else "metadata"
        entry = self._read(f"offsets/{batch}")
        self._require([needed, beginning.INITIAL] if batch == 0 else [needed], f"before batch {batch} is planned")
        self._check_own(entry, batch)
        return entry

    def after(self, batch: BatchId) -> None:
        """Make sure that all state of a batch is on the store."""
        if not self._remote:
            return
        version = batch + 1
        missing = list(
            self._pool.map(
                lambda folder: None if self._has_state(folder, version) else f"{folder}/{version}.changelog",
                [folder for operator in self._operators() for folder in operator.folders()],
            )
        )
        self._refuse([each for each in missing if each], f"after batch {batch}")
        self._done = batch

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _has_state(self, folder: str, version: int) -> bool:
        return any(self._exists(f"{folder}/{version}.{kind}") for kind in ("changelog", "zip", "delta", "snapshot"))

    def _require(self, needed: list[str], when: str) -> None:
        present = self._pool.map(self._exists, needed)
        self._refuse([name for name, found in zip(needed, present, strict=True) if not found], when)

    def _refuse(self, missing: list[str], when: str) -> None:
        if missing:
            raise lacking(self.place, missing, when, self._remote)

    def _check_own(self, entry: str, batch: BatchId) -> None:
        """Refuse an entry that this query does not work with: another driver's must not be planned."""
        execution = self._execution()
        ours = json.loads(execution.lastExecution().offsetSeqMetadata().json())
        _, metadata, *stored = entry.strip().splitlines()
        theirs = json.loads(metadata)
        held = execution.availableOffsets().values().toSeq()
        offsets = [json.loads(held.apply(number).json()) for number in range(held.size())]
        same = all(ours.get(name) == theirs.get(name) for name in ("batchWatermarkMs", "batchTimestampMs"))
        # A source that two branches read has a line for each of them.
        lines = [json.loads(each) for each in stored]
        if not same or any(each not in lines for each in offsets) or any(each not in offsets for each in lines):
            raise CheckpointMismatch(
                f"offsets/{batch} of the checkpoint {self.place} was not written by this driver",
                kept="nothing of the batch was written",
                then="stop the other driver that uses the checkpoint, then start again",
            )

    # -- what Spark knows --------------------------------------------------------------------------

    def _execution(self) -> Any:
        number = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        for query in self._spark.streams.active:
            if number is None or query.id == number:
                return query._jsq.streamingQuery()
        raise failed(f"Spark no longer knows the query {number}", self._remote)

    def _operators(self) -> tuple[Operator, ...]:
        """Return the query's stateful operators, which are the same in all its batches; a query may have none."""
        if self._known is None:
            nodes = executed.nodes(tree(self._execution().lastExecution().executedPlan()))
            found = [info for info in (_state_info(node.plan) for node in nodes) if info is not None]
            counts = {info.operatorId(): info.numPartitions() for info in found}
            self._known = tuple(
                Operator(number, partitions, self._stores(number)) for number, partitions in sorted(counts.items())
            )
        return self._known

    def _stores(self, operator: int) -> tuple[str, ...]:
        """Return the names of an operator's stores, from the metadata that Spark writes before its first batch."""
        name = f"state/{operator}/_metadata/metadata"
        self._require([name], "with the first batch of a run")
        stores = json.loads(self._read(name).strip().splitlines()[-1])["stateStoreInfo"]
        return tuple(str(store["storeName"]) for store in stores)

    # -- Hadoop's file system ----------------------------------------------------------------------

    @cached_property
    def _files(self) -> Any:
        with self._asking("opening it"):
            path = self._jvm.org.apache.hadoop.fs.Path(self.place)
            return path.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.place}/{name}")

    def _exists(self, name: str) -> bool:
        with self._asking(f"looking for {name}"):
            return bool(self._files.exists(self._path(name)))

    def _batches(self, log: str) -> list[int]:
        return [int(name) for name in self._names(log) if name.isdigit()]

    def _names(self, log: str) -> list[str]:
        with self._asking(f"listing {log}"):
            found = self._files.listStatus(self._path(log)) if self._files.exists(self._path(log)) else []
            return [each.getPath().getName() for each in found]

    def _read(self, name: str) -> str:
        with self._asking(f"reading {name}"):
            stream = self._files.open(self._path(name))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def _replace(self, name: str, text: str, when: str) -> None:
        """Replace a file, and refuse if the store then has another text."""
        self._write(name, text)
        if self._read(name) != text:
            self._refuse([name], when)

    def _write(self, name: str, text: str) -> None:
        """Replace a file as Spark does, so that a crash leaves the old one or the new one."""
        with self._asking(f"writing {name}"):
            self._files.mkdirs(self._path(name).getParent())
            streaming = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing
            conf = self._spark._jsparkSession.sessionState().newHadoopConf()
            manager = streaming.CheckpointFileManager.create(self._jvm.org.apache.hadoop.fs.Path(self.place), conf)
            stream = manager.createAtomic(self._path(name), True)
            try:
                stream.write(bytearray(text.encode()))
                stream.close()
            except BaseException:
                stream.cancel()
                raise

    def _asking(self, doing: str) -> Asking:
        return Asking(f"checkpoint {self.place}: {doing}", self._remote)


def _state_info(node: Any) -> Any:
    try:
        found = node.stateInfo()
    except Py4JError:  # not an operator with state: it has no such method
        return None
    if not found.isDefined():
        raise InvariantBroken(f"Spark's plan does not name the state of {node.nodeName()}", kept=KEPT)
    return found.get()
