"""A shuffle that is changed while a batch is open: what decided a part that is delivered decides the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from support.drivers import count, driver, written_file
from support.pipelines import Bench, numbered
from tailrace import errors
from tailrace.gateway.writing import Deliveries
from tailrace.progress.ledger import Ledger
from tailrace.progress.plan import SinkPartition
from tailrace.progress.stream_plan import StreamPlan
from tailrace.spark_stream.sink import BatchWrite
from tailrace.testing import wait_until

pytestmark = pytest.mark.integration

# Fails in the sink partitions that the file `broken` names, at first late enough for the others to commit.
# The search for the record that it fails at need not wait.
CHECK = """
        def check(value, partition):
            broken = Path({folder!r}, "broken")
            if broken.exists() and str(partition) in broken.read_text():
                with Path({folder!r}, "failed").open("a") as failed:
                    failed.write("x")
                    late = failed.tell() <= 4
                time.sleep(3 if late else 0)
                raise ValueError("the fault of the test")
            return value
"""
IMPORTS = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType
"""
FUNCTION = f"""{IMPORTS}
    def by(frame, divisor=0, salt="", spread=0):{CHECK}
        rows = frame.repartition(2, F.hash("value") % divisor) if divisor else frame
        if salt:
            key = F.concat(F.col("value").cast("string"), F.lit(salt))
            rows = rows.withColumn("k", key).dropDuplicates(["k"])
        if spread:
            rows = rows.repartition(spread, F.hash("value") % 7)
        return rows.select(F.udf(check, BinaryType())("value", F.spark_partition_id()).alias("value"))
"""


class Run(Protocol):
    """Run a pipeline with these arguments of the function; it fails in the sink partitions that `broken` names."""

    def __call__(self, broken: str = "", *, then: dict[str, Any] | None = None, **arguments: object) -> None:
        """Deliver what is there; `then` has more settings of `process`."""


def prepared(bench: Callable[..., Bench], checkpoint: str) -> tuple[Bench, Run]:
    """Return a pipeline with forty records in two source partitions, and how it is run."""
    one = bench(partitions=2)
    one.write("shuffles.py", FUNCTION.format(folder=str(one.folder)))
    for partition in range(2):
        one.send(numbered(20 * partition, 20 * partition + 20), partition=partition)

    def run(broken: str = "", *, then: dict[str, Any] | None = None, **arguments: object) -> None:
        (one.folder / "failed").write_text("")
        (one.folder / "broken").write_text(broken)
        sections: dict[str, Any] = {
            "source": {"format": "raw", "partitions": None},  # reading tasks reject, and so deliver, nothing
            "process": {"function": "shuffles.py:by", "arguments": arguments, **(then or {})},
            "sink": {"format": "raw"},
            "checkpoint": checkpoint if checkpoint == "ledger" else str(one.folder / checkpoint),
            "spark": {"spark.sql.shuffle.partitions": "2"},
        }
        one.run(**sections)

    return one, run


def deliver_in_part(one: Bench, run: Callable[[], None]) -> list[bytes | None]:
    """Run until one sink partition is delivered and the other is not; return what the sink holds."""
    with pytest.raises(errors.FunctionFailed):
        run()
    one.settle()
    found = one.values()
    assert 0 < len(found) < 40
    return found


def only_finishes(
    one: Bench, before: list[bytes | None], *, changed: Callable[[], None], unchanged: Callable[[], None]
) -> None:
    """Require that the changed run is refused and writes nothing, and that the unchanged one delivers the rest."""
    with pytest.raises(errors.CutChanged, match="function"):
        changed()
    assert one.values() == before
    unchanged()
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(30)
@pytest.mark.parametrize("checkpoint", ["ledger", "state"])
def test_first_function_is_refused_once_the_second_has_delivered_a_part(
    bench: Callable[..., Bench], checkpoint: str
) -> None:
    """The first had delivered nothing. A rollback to it would move rows from a part to come to one that is there."""
    one, run = prepared(bench, checkpoint)
    with pytest.raises(errors.FunctionFailed):
        run("01", divisor=5)
    one.settle()
    assert one.values() == []
    before = deliver_in_part(one, lambda: run("1", divisor=7))
    only_finishes(one, before, changed=lambda: run(divisor=5), unchanged=lambda: run(divisor=7))


@pytest.mark.takes(20)
def test_changed_key_of_a_deduplication_is_refused_once_a_part_is_delivered(bench: Callable[..., Bench]) -> None:
    """State is kept by key, so the key decides what a sink partition gets: a changed one would move rows."""
    one, run = prepared(bench, "state")
    before = deliver_in_part(one, lambda: run("1", salt="a"))
    only_finishes(one, before, changed=lambda: run(salt="b"), unchanged=lambda: run(salt="a"))


@pytest.mark.takes(20)
def test_function_that_would_have_other_sink_partitions_leaves_the_open_batch_to_the_one_before(
    bench: Callable[..., Bench],
) -> None:
    """The refusal tells to start as before, so the plan must not name the code that was refused."""
    one, run = prepared(bench, "state")
    before = deliver_in_part(one, lambda: run("1"))
    only_finishes(one, before, changed=lambda: run(spread=3), unchanged=lambda: run())


@pytest.mark.takes(20)
def test_function_without_a_shuffle_may_change_behind_process_partitions(bench: Callable[..., Bench]) -> None:
    """This shuffle goes by where a record is in the source, so a function that fails on a record can be mended."""
    one, run = prepared(bench, "state")
    more = {"partitions": 2}
    deliver_in_part(one, lambda: run("1", then=more, salt=""))
    run(then=more)
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(20)
def test_function_that_now_keeps_state_is_refused_where_process_partitions_has_cut_a_delivered_part(
    bench: Callable[..., Bench],
) -> None:
    """There are as many sink partitions as before, but other rows in each."""
    one, run = prepared(bench, "state")
    more = {"partitions": 2}
    before = deliver_in_part(one, lambda: run("1", then=more))
    only_finishes(one, before, changed=lambda: run(then=more, salt="a"), unchanged=lambda: run(then=more))


# The day of the record in the session's time zone decides its sink partition.
BY_DAY = f"""{IMPORTS}
    def by(frame):{CHECK}
        at = F.timestamp_seconds(F.col("value").cast("string").cast("long") * 3600)
        rows = frame.withColumn("day", F.date_format(at, "yyyy-MM-dd HH")).repartition(2, F.substring("day", 1, 10))
        return rows.select(F.udf(check, BinaryType())("value", F.spark_partition_id()).alias("value"))
"""
ZONE = "spark.sql.session.timeZone"


@pytest.mark.takes(30)
@pytest.mark.parametrize("checkpoint", ["ledger", "state"])
def test_partly_delivered_batch_is_refused_in_a_session_of_another_time_zone(
    bench: Callable[..., Bench], checkpoint: str
) -> None:
    """The records around midnight would move from a sink partition to come to one that is written, or back."""
    one = bench(partitions=1)
    one.write("by_day.py", BY_DAY.format(folder=str(one.folder)))
    one.send(numbered(0, 240))

    def run(zone: str, broken: str = "", batch_size: str = "10000") -> None:
        (one.folder / "failed").write_text("")
        (one.folder / "broken").write_text(broken)
        one.spark.conf.set(ZONE, zone)
        one.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch_size)  # decides only how fast
        one.run(
            source={"format": "raw", "partitions": None},
            process={"function": "by_day.py:by"},
            sink={"format": "raw"},
            checkpoint=checkpoint if checkpoint == "ledger" else str(one.folder / checkpoint),
        )

    try:
        with pytest.raises(errors.FunctionFailed):
            run("UTC", broken="1")
        one.settle()
        before = one.values()
        assert 0 < len(before) < 240
        with pytest.raises(errors.CutChanged, match=rf"{ZONE} \(UTC, now Asia/Tokyo\)"):
            run("Asia/Tokyo")
        assert one.values() == before
        run("Etc/UTC", batch_size="5000")  # the same zone, as another machine names it
    finally:
        one.spark.conf.set(ZONE, "UTC")
        one.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert one.values() == numbered(0, 240)


@pytest.mark.takes(20)
def test_late_task_of_a_stateful_batch_that_new_code_has_delivered_is_refused(bench: Callable[..., Bench]) -> None:
    """Spark fixes the batch's number, so the marker tells whose code has divided it."""
    one, run = prepared(bench, "state")
    with pytest.raises(errors.FunctionFailed):
        run("01", divisor=5)
    one.settle()
    pipeline = one.pipeline(checkpoint=str(one.folder / "state"))
    with Ledger.of(pipeline) as ledger:
        old = ledger.latest()
    assert isinstance(old, StreamPlan)
    run(divisor=7)
    assert one.values() == numbered(0, 40)
    every = tuple(SinkPartition(number) for number in range(old.sinks))
    task = BatchWrite.of(pipeline, old, every, old.run, {}).task(0)
    late = Deliveries("old-gateway")
    with pytest.raises(errors.MarkerConflict, match="written, by another plan"):
        late.write(task, iter([]))
    late.sinks.close()


# Holds each sink partition until the test lets this code deliver it.
HELD = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    def by(frame, divisor):
        def held(value, partition):
            while not Path({folder!r}, f"go-{{divisor}}-{{partition}}").exists():
                time.sleep(0.1)
            return value
        rows = frame.withColumn("k", F.hash("value") % divisor).repartition(2, "k")
        return rows.select(F.udf(held, BinaryType())("value", F.spark_partition_id()).alias("value"))
"""


@pytest.mark.slow
@pytest.mark.takes(60)
def test_tasks_of_the_first_function_write_nothing_after_the_second_has_taken_over(bench: Callable[..., Bench]) -> None:
    """The first driver runs until its successor gives the batch up, and its tasks are tried again."""
    one = bench()
    one.write("held.py", HELD.format(folder=str(one.folder)))
    one.send(numbered(0, 40))
    files, logs = list[Path](), [one.folder / f"{number}.log" for number in range(2)]
    for divisor in (5, 7):
        sections: dict[str, Any] = {"function": "held.py:by", "arguments": {"divisor": divisor}}
        file = written_file(one, source={"format": "raw", "partitions": None}, process=sections)
        files.append(Path(shutil.copy(file, one.folder / f"by-{divisor}.yaml")))

    def let(divisor: int, *partitions: int) -> None:
        for partition in partitions:
            (one.folder / f"go-{divisor}-{partition}").touch()

    with driver(files[0], logs[0]) as old:
        wait_until(lambda: count(logs[0], "planned") == 1, "the first driver's plan", 150)
        with driver(files[1], logs[1]) as new:
            wait_until(lambda: count(logs[1], "planned") == 1, "the second driver's plan", 150)
            let(5, 1)
            wait_until(lambda: old.poll() is not None or bool(one.values()), "the first driver's task, or its end", 90)
            let(7, 0, 1)
            wait_until(lambda: count(logs[1], "written") == 1 or new.poll() is not None, "the second's batch", 90)
    assert one.values() == numbered(0, 40)


@pytest.mark.takes(40)
@pytest.mark.parametrize("checkpoint", ["ledger", "state"])
def test_partly_delivered_batch_keeps_the_isolation_that_it_was_begun_with(
    bench: Callable[..., Bench], checkpoint: str
) -> None:
    """A record of an aborted transaction is rejected already, and would be missing from the second read."""
    one = bench()
    one.write("shuffles.py", FUNCTION.format(folder=str(one.folder)))
    one.abort(b"no JSON", 0)
    one.send([b'{"value": "%08d"}' % number for number in range(40)])

    def run(isolation: str, broken: str = "") -> None:
        (one.folder / "failed").write_text("")
        (one.folder / "broken").write_text(broken)
        sections: dict[str, Any] = {
            "source": {"format": "json", "schema": "value BINARY", "isolation": isolation},
            "process": {"function": "shuffles.py:by", "arguments": {"divisor": 5}},
            "checkpoint": checkpoint if checkpoint == "ledger" else str(one.folder / checkpoint),
        }
        one.run(**sections)

    with pytest.raises(errors.FunctionFailed):
        run("read_uncommitted", broken="1")
    one.settle()
    assert len(one.rejected()) == 1
    with pytest.raises(errors.CutChanged, match=r"source\.isolation \(read_uncommitted, now read_committed\)"):
        run("read_committed")
    run("read_uncommitted")
    run("read_committed")
    assert (len(one.values()), len(one.rejected())) == (40, 1)
