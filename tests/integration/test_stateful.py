"""Stateful pipelines: Spark plans their batches, and each record still gets one verdict and is delivered once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from support import early, strict
from support.expiry import expire
from support.pipelines import Bench, events_of
from tailrace import errors
from tailrace.admin.progress_checks import progress
from tailrace.driver import recovery
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import markers_group
from tailrace.progress.positions import begins
from tailrace.progress.stream_plan import AnyPlan, StreamPlan
from tailrace.spark_stream import runner
from tailrace.testing import consume

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]

# Keeps state, and fails after it for one id while the file `broken` exists.
FUNCTION = """
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    def first(frame):
        return plain(frame.dropDuplicates(["id"]))

    def unchanged(frame):
        return frame.select("id")

    def plain(frame):
        def check(number):
            if number == 4 and Path({folder!r}, "broken").exists():
                raise ValueError("the fault of the test")
            return number
        return frame.select(F.udf(check, LongType())("id").alias("id"))

    def shuffled(frame):
        return plain(frame.repartition(3, "id"))

    def twice(frame):
        return first(frame.union(frame))

    def either(frame):
        return shuffled(frame) if Path({folder!r}, "by_id").exists() else plain(frame)

    def adaptive(frame):
        frame.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
        return shuffled(frame)

    def joined(frame):
        left = frame.select(F.col("id").alias("a"))
        right = frame.select(F.col("id").alias("b"))
        return left.join(right, F.col("a") == F.col("b")).select(F.col("a").alias("id"))
"""


def prepared(bench: MakeBench, function: str = "first", **sink: Any) -> tuple[Bench, dict[str, Any]]:
    """Return a stateful pipeline of two source partitions whose odd records are rejected while `strict` exists."""
    one = bench(partitions=2)
    strict.fill(one)
    one.write("keep.py", FUNCTION.format(folder=str(one.folder)))
    sections: dict[str, Any] = {
        "source": {"format": "json", "schema": strict.SCHEMA, "partitions": None},
        "process": {"function": f"keep.py:{function}"},
        "sink": {"format": "json", **sink},
        "checkpoint": str(one.folder / "state"),
    }
    return one, sections


def ids(numbers: range) -> list[bytes]:
    """Return sink records with these ids, sorted."""
    return sorted(b'{"id":%d}' % number for number in numbers)


def refused(one: Bench) -> list[int]:
    """Return the ids of the rejected records, sorted."""
    return sorted(json.loads(value or b"{}")["id"] for value, _ in one.rejected())


def test_stateful_pipeline_delivers_each_record_once_over_a_replay(bench: MakeBench) -> None:
    """The reading tasks commit rejected records; the replay finds them delivered."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    assert refused(one) == list(range(1, 20, 2))
    (replay, *_) = events_of(one.run(**sections), "written")
    assert replay["skipped"] >= 2
    assert replay["sinks"] == 4
    assert refused(one) == list(range(1, 20, 2))
    assert one.values() == ids(range(0, 20, 2))


def test_delivered_batch_that_spark_brings_again_without_its_markers_is_refused(bench: MakeBench) -> None:
    """A driver that is killed after it noted the batch as done leaves the checkpoint without that note."""
    one, sections = prepared(bench)
    one.run(**sections)
    for each in (one.folder / "state" / "commits").iterdir():
        each.unlink()
    group = markers_group(one.name)
    admin = AdminClient({"bootstrap.servers": one.kafka})  # kept: its requests end with it
    admin.delete_consumer_groups([group])[group].result(30)  # as the brokers do after all its offsets expire
    with pytest.raises(errors.ProgressMissing, match="4 of its 4 markers"):
        one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))
    assert refused(one) == list(range(1, 20, 2))


def test_delivered_batch_that_spark_brings_again_to_new_code_is_skipped(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has died before the ledger and the checkpoint said that the batch is done."""
    one, sections = prepared(bench, "shuffled")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "settle", lambda *_: None)
        one.run(**sections)
    for each in (one.folder / "state" / "commits").iterdir():
        each.unlink()
    code = one.folder / "keep.py"
    code.write_text(f"{code.read_text()}# new\n")
    (replay, *_) = events_of(one.run(**sections), "written")
    assert replay["skipped"] == replay["sinks"]
    assert one.values() == ids(range(0, 20, 2))


@pytest.mark.takes(13)
def test_changed_verdict_in_a_stateful_pipeline_stops_the_batch_and_names_the_record(bench: MakeBench) -> None:
    """With the old verdict, it continues."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    before = one.values()
    (one.folder / "strict").unlink()
    with pytest.raises(errors.VerdictChanged, match=rf"the record {one.source}-[01] offset 1 is now accepted"):
        one.run(**sections)
    one.settle()
    assert one.values() == before
    (one.folder / "strict").touch()
    one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))
    assert refused(one) == list(range(1, 20, 2))


@pytest.mark.takes(17)
def test_stateful_pipeline_with_two_sink_partitions_finishes_a_partly_delivered_batch(bench: MakeBench) -> None:
    """Its state has the same number of partitions, so nothing is merged by the location of the state."""
    one, sections = prepared(bench, partitions=2)
    sections["spark"] = {"spark.sql.shuffle.partitions": "4"}
    one.run(**sections)
    for partition in range(2):
        one.send([b'{"id": %d}' % number for number in range(20 + partition * 10, 30 + partition * 10)], partition)
    one.send([b'{"id": 4}'], 0)  # a duplicate, which the state drops
    (one.folder / "strict").unlink()
    fail_behind_the_state_again(one, sections)
    (replay, *_) = events_of(one.run(**sections), "written")
    assert replay["sinks"] == 4  # two for outputs, two for the rejected records of two ranges
    assert one.values() == sorted([*ids(range(0, 20, 2)), *ids(range(20, 40))])


def fail_behind_the_state_again(one: Bench, sections: dict[str, Any]) -> None:
    """Fail for an id that the state has not seen."""
    text = (one.folder / "keep.py").read_text()
    (one.folder / "keep.py").write_text(text.replace("number == 4", "number == 24"))
    one.fail_in_part(**sections)


def test_rest_of_a_batch_of_a_stateful_pipeline_is_not_delivered_to_another_topic(bench: MakeBench) -> None:
    """Readers of that topic would never get what the delivered sink partitions hold."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    other, before = one.topics("other", 2), one.values()
    changed = sections | {"sink": sections["sink"] | {"topic": other}}
    with pytest.raises(errors.PlanOfAnother, match=f"delivered in part, to the sink '{one.sink}'.* to '{other}'"):
        one.run(**changed)
    assert (one.values(), one.values(other)) == (before, [])
    [checked] = [each for each in progress(one.pipeline(**changed), one.folder, one.folder) if each.name == "last plan"]
    assert f"to {other!r}" in checked.found
    one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))
    one.send([b'{"id": 40}'])
    one.run(**changed)
    assert one.values(other) == ids(range(40, 41))


def test_open_batch_of_a_stateful_pipeline_without_a_delivered_part_goes_to_another_topic(bench: MakeBench) -> None:
    """From then on the batch is of that topic, whatever happens to the run."""
    one, sections = prepared(bench, "unchanged")
    other = one.topics("other", 2)
    changed = sections | {"sink": sections["sink"] | {"topic": other}}

    def nothing(*given: Any) -> Any:
        raise ValueError("the fault of the test")

    plans: list[AnyPlan | None] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "deliver_judged", nothing)
        for each in (sections, changed):
            with pytest.raises(errors.QueryFailed, match="the fault of the test"):
                one.run(**each)
            with Ledger.of(one.pipeline(**changed)) as ledger:
                plans.append(ledger.latest())
    assert [plan.sink for plan in plans if isinstance(plan, StreamPlan)] == [one.sink, other]
    assert len({plan.digest for plan in plans if plan is not None}) == 2  # a late task's marker is of the first one
    one.run(**changed)
    assert (one.values(), one.values(other)) == ([], ids(range(0, 20, 2)))


@pytest.mark.takes(14)
def test_stateful_pipeline_in_doubt_continues_as_its_refusal_advises(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For TR-306 after a week, `tailrace offsets set` does not work: a new name begins where its owner says."""
    one, sections = prepared(bench)
    one.run(**sections)
    one.send([b'{"id": %d}' % number for number in range(20, 40, 2)])
    fail_behind_the_state_again(one, sections)
    group = markers_group(one.name)
    admin = AdminClient({"bootstrap.servers": one.kafka})  # kept: its requests end with it
    admin.delete_consumer_groups([group])[group].result(30)  # as the brokers do after all its offsets expire
    later = SimpleNamespace(time=lambda: time.time() + 8 * 86_400, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(recovery, "time", later)
    with pytest.raises(errors.ProgressMissing) as caught:
        one.run(**sections)
    assert "offsets set" not in caught.value.then
    found = re.search(r"a new name, a new checkpoint and a section `offsets` with store: (\S+),", caught.value.then)
    assert found is not None
    delivered = one.values()
    with Ledger.of(one.pipeline(**sections)) as ledger:
        plan = ledger.latest()
    assert plan is not None
    begun = {str(number): offset for (_, number), offset in begins(plan, plan.ends).items()}
    (one.folder / "chosen.json").write_text(json.dumps({"version": 1, "offsets": {one.source: begun}}))
    new = {"pipeline": f"{one.name}-2", "checkpoint": str(one.folder / "new")}
    one.run(one.pipeline(**sections | new | {"offsets": {"store": found[1], "path": "chosen.json"}}))
    assert len(one.values()) > len(delivered)
    assert sorted({value or b"" for value in one.values()}) == ids(range(0, 40, 2))  # the delivered part comes again


def test_stateful_pipeline_continues_long_after_a_batch_that_spark_has_noted(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that always has records notes none of its batches as done; Spark notes each that is delivered."""
    one, sections = prepared(bench)
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "settle", lambda *given: None)  # it is killed before
        one.run(**sections)
    group = markers_group(one.name)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.delete_consumer_groups([group])[group].result(30)
    later = SimpleNamespace(time=lambda: time.time() + 8 * 86_400, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(recovery, "time", later)
    one.send([b'{"id": %d}' % number for number in range(20, 40, 2)])
    one.run(**sections)
    assert one.values() == ids(range(0, 40, 2))


def test_record_that_a_function_reads_twice_is_rejected_once(bench: MakeBench) -> None:
    """Both reads reach the gate, and the second finds the verdicts delivered."""
    one, sections = prepared(bench, "joined")
    one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))
    assert refused(one) == list(range(1, 20, 2))


@pytest.mark.takes(11)
def test_stateful_pipeline_continues_after_a_range_without_records(bench: MakeBench) -> None:
    """If all records of a range were aborted, its sink partition still gets a marker."""
    one, sections = prepared(bench)
    one.run(**sections)
    one.abort(b'{"id": 100}', 1)
    one.send([b'{"id": 40}', b'{"id": 41}'], 0)
    written = events_of(one.run(**sections), "written")
    assert sum(each["out"] for each in written) == 1
    with Ledger.of(one.pipeline(**sections)) as ledger:
        plan = ledger.latest()
        assert plan is not None
        assert sorted(ledger.markers()) == list(range(plan.sinks))
    one.send([b'{"id": 42}'], 1)
    one.run(**sections)
    assert one.values() == sorted([*ids(range(0, 20, 2)), *ids(range(40, 43, 2))])


def test_sink_partitions_without_a_shuffle_merge_source_partitions(bench: MakeBench) -> None:
    """Each source partition keeps its order."""
    one, sections = prepared(bench, "unchanged", partitions=1)
    (written, *_) = events_of(one.run(**sections), "written")
    assert written["sinks"] == 3
    found = [json.loads(each.value or b"{}")["id"] for each in consume(one.kafka, one.sink)]
    assert sorted(found) == list(range(0, 20, 2))
    for begin in (0, 10):
        own = [each for each in found if begin <= each < begin + 10]
        assert own == sorted(own)


def test_function_that_reads_its_records_once_more_continues(bench: MakeBench) -> None:
    """Spark's offset log has a line for each place where they are read, and was refused at every start."""
    one, sections = prepared(bench)
    one.run(**sections)
    one.send([b'{"id": 2}', b'{"id": 50}'], 0)
    one.run(**sections | {"process": {"function": "keep.py:twice"}})
    assert one.values() == sorted([*ids(range(0, 20, 2)), b'{"id":50}'])


def test_batch_in_part_is_not_finished_behind_the_shuffle_of_another(bench: MakeBench) -> None:
    """The same code shuffles or not, as a file says; without, Tailrace's own shuffle has as many partitions."""
    one, sections = prepared(bench, "either", partitions=3)
    (one.folder / "by_id").touch()
    one.fail_in_part(**sections)
    (one.folder / "by_id").unlink()
    with pytest.raises(errors.CutChanged, match="now the function has no shuffle and no union"):
        one.run(**sections)
    (one.folder / "by_id").touch()
    one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))


def test_function_that_turns_adaptive_execution_on_is_delivered_once_over_a_replay(bench: MakeBench) -> None:
    """A setting of its module counts for the query; Spark would merge the partitions of its shuffle by their sizes."""
    one, sections = prepared(bench, "adaptive")
    one.fail_in_part(**sections)
    one.run(**sections)
    assert one.values() == ids(range(0, 20, 2))
    assert refused(one) == list(range(1, 20, 2))


def test_session_that_was_passed_in_keeps_its_number_of_partitions(bench: MakeBench) -> None:
    """The next query in it would have the state of this pipeline's `sink.partitions`, and as few tasks."""
    one, sections = prepared(bench, partitions=1)
    (written, *_) = events_of(one.run(**sections), "written")
    assert written["sinks"] == 3  # two of them are the reading tasks
    assert one.spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_checkpoint_of_version_0_1_that_reads_each_record_twice_continues(bench: MakeBench) -> None:
    """Its offset log has a line for each of the two reads; the state is kept."""
    one, sections = prepared(bench)
    one.run(**sections)
    log = one.folder / "state" / "offsets"
    last = max((each for each in log.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
    lines = last.read_text().splitlines()
    for file in sorted(Path(log).iterdir()):
        if file.name.isdigit():
            own = file.read_text().splitlines()
            file.write_text("\n".join([*own, own[-1]]))
            (log / f".{file.name}.crc").unlink(missing_ok=True)
    assert len(last.read_text().splitlines()) == len(lines) + 1
    one.send([b'{"id": 2}', b'{"id": 50}'], 0)
    one.run(**sections)
    assert one.values() == sorted([*ids(range(0, 20, 2)), b'{"id":50}'])


def test_source_that_grows_while_a_stateful_pipeline_starts_is_read_whole(bench: MakeBench) -> None:
    """Spark refuses offsets that leave out a partition; nothing was planned, so the pipeline begins again."""
    one, sections = prepared(bench)
    late = list(range(20, 30, 2))

    def enough(events: list[dict[str, Any]]) -> bool:
        names: list[str] = [each["event"] for each in events]
        if names[-1] == "ready" and names.count("ready") == 1:
            one.grow(3)
        elif names[-1] == "ready":
            producer = Producer({"bootstrap.servers": one.kafka})  # a new one: it does not know two partitions only
            for number in late:
                producer.produce(one.source, b'{"id": %d}' % number, partition=2)
            assert producer.flush(30) == 0
        return names[-1] == "idle"

    events = one.run_until(one.pipeline(**sections), enough)
    assert [each["event"] for each in events].count("ready") == 2
    assert one.values() == ids(range(0, 30, 2))


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "killed"])
def test_stateful_pipeline_that_starts_without_new_records_is_idle(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """Spark does not bring its last batch again, whether the ledger knows that it is done or the driver was killed."""
    one, sections = prepared(bench)
    with monkeypatch.context() as patched:
        if not settled:
            patched.setattr(Ledger, "settle", lambda *_: None)
        one.run(**sections)
    events = one.run_until(one.pipeline(**sections), lambda found: found[-1]["event"] == "idle")
    assert not events_of(events, "planned")
    with Ledger.of(one.pipeline(**sections)) as ledger:
        plan = ledger.latest()
    assert plan is not None
    assert plan.done


def test_stateful_pipeline_that_cannot_note_a_batch_ends_with_the_first_error(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end it tries again to note the batch, and the client may then complain about the first try."""
    one, sections = prepared(bench)
    tries: list[str] = []

    def settle(*_: object) -> None:
        tries.append(f"try {len(tries) + 1}")
        raise errors.KafkaFailed(tries[-1], kept="everything", then="start the pipeline again")

    monkeypatch.setattr(Ledger, "settle", settle)
    with pytest.raises(errors.KafkaFailed, match="try 1"):
        one.run_until(one.pipeline(**sections), lambda found: False)
    assert len(tries) == 2


@pytest.mark.takes(20)
def test_rejected_record_after_a_function_before_state_stops_reading_is_not_lost(bench: MakeBench) -> None:
    """The function takes only its first rows, and the others are more than Spark reads ahead of it."""
    one = bench()
    early.write(one, "id", "text", then='.dropDuplicates(["id"])')
    text = b"x" * 1000
    one.send([*(b'{"id": %d, "text": "%s"}' % (number, text) for number in range(60_000)), b"broken"])
    one.run(
        source={"format": "json", "schema": "id long, text string"},
        process={"function": early.FUNCTION},
        sink={"format": "json"},
        checkpoint=str(one.folder / "state"),
    )
    assert [value for value, _ in one.rejected()] == [b"broken"]
    assert 0 < len(one.values()) < 60_000


@pytest.mark.takes(15)
@pytest.mark.parametrize("before", [4, 13], ids=["of the batch", "beyond its end"])
def test_open_batch_of_a_stateful_pipeline_whose_records_are_deleted_is_finished_with_reset(
    bench: MakeBench, before: int
) -> None:
    """Deleted records have no other verdict, and nothing was delivered because of their deletion."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    delivered = one.values()
    one.send([b'{"id": %d}' % number for number in range(100, 110)], 0)
    expire(one.kafka, one.source, before)
    sections["source"]["on_data_loss"] = "reset"
    one.run(**sections)
    left = {4: [*range(4, 20, 2), *range(100, 110, 2)], 13: [*range(10, 20, 2), 104, 106, 108]}[before]
    values = one.values()
    assert len(values) == len(set(values))
    assert set(values) == {*delivered, *(b'{"id":%d}' % number for number in left)}
    assert refused(one) == [*range(1, 20, 2), *range(101 if before == 4 else 103, 110, 2)]
    one.send([b'{"id": 120}'], 0)
    one.run(**sections)
    assert set(one.values()) == {*values, b'{"id":120}'}
    assert len(one.values()) == len(values) + 1


@pytest.mark.parametrize("function", ["plain", "shuffled"])
def test_open_batch_whose_checkpoint_was_removed_is_refused(bench: MakeBench, function: str) -> None:
    """Without the folder its rejected records would be delivered again; with the folder it is finished."""
    one, sections = prepared(bench, function)
    one.fail_in_part(**sections)
    before, aside = one.values(), refused(one)
    without: dict[str, Any] = {name: value for name, value in sections.items() if name != "checkpoint"}
    with pytest.raises(errors.CutChanged) as caught:
        one.run(**without)
    assert "0.1" not in str(caught.value) + caught.value.then
    assert "with its checkpoint" in caught.value.then
    assert (one.values(), refused(one)) == (before, aside)
    one.run(**sections)
    assert (one.values(), refused(one)) == (ids(range(0, 20, 2)), list(range(1, 20, 2)))
