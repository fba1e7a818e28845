"""Where a stateful pipeline begins if it has ended before its first batch, or before its first record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from support.expiry import expire
from support.pipelines import Bench, events_of
from tailrace import errors
from tailrace.cli.offsets import app
from tailrace.progress.ledger import Ledger
from tailrace.spark_stream import runner, stream
from tailrace.spark_stream.checkpoint import Checkpoint
from tailrace.testing import Record, produce, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.takes(15)]

MakeBench = Callable[..., Bench]
LATEST: dict[str, Any] = {"auto.offset.reset": "latest"}


@pytest.fixture
def one(bench: MakeBench) -> Bench:
    """Fill a source partition with ten records."""
    made = bench()
    made.write("keep.py", "def first(frame): return frame.dropDuplicates(['id'])\n")
    made.send(records(0, 10))
    return made


def records(start: int, end: int) -> list[bytes | None]:
    """Return a record for each of these ids."""
    return [b'{"id": %d}' % number for number in range(start, end)]


def ids(one: Bench) -> list[int]:
    """Return what the sink has, sorted."""
    return sorted(json.loads(value or b"")["id"] for value in one.values())


def sections(one: Bench, *, follows: bool = True, **source: Any) -> dict[str, Any]:
    """Return the sections of a stateful pipeline, by default of one that begins where an old job is."""
    return {
        "source": {"format": "json", "schema": "id long", "partitions": None, **source},
        "process": {"function": "keep.py:first"},
        "sink": {"format": "json"},
        "checkpoint": str(one.folder / "state"),
        **({"offsets": {"from": old_job(one)}} if follows else {}),
    }


def old_job(one: Bench) -> str:
    """Return the group of the job that the pipeline replaces."""
    return f"{one.name}-old"


def move(one: Bench, offset: int) -> None:
    """Let the old job be at this offset."""
    one.commit(old_job(one), {0: offset})


def fail_before_the_plan(one: Bench, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any]) -> None:
    """Run the pipeline until it writes its first plan, which fails."""
    fail_at(one, monkeypatch, made, Ledger, "write")


def fail_at(one: Bench, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], where: object, step: str) -> None:
    """Run the pipeline until a step, which fails."""

    def fail(*_: object) -> None:
        raise errors.KafkaFailed("the fault of the test", kept="everything", then="start the pipeline again")

    with monkeypatch.context() as patched:
        patched.setattr(where, step, fail)
        with pytest.raises(errors.KafkaFailed, match="the fault of the test"):
            one.run(**made)


def another_topic(one: Bench) -> tuple[AdminClient, str]:
    """Create a second source topic; its name begins like that of the first."""
    other = f"{one.source}-other"
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.create_topics([NewTopic(other, 1)])[other].result(30)
    return admin, other


def set_offset(one: Bench, made: dict[str, Any], *places: str) -> None:
    """Set offsets as a person does."""
    file = one.folder / "pipeline.json"
    data = one.pipeline(**made).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    file.write_text(json.dumps(data))
    done = CliRunner().invoke(app, ["set", str(file), *places, "--yes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("later", [15, 4])
def test_stateful_pipeline_that_failed_before_its_first_plan_begins_where_the_old_job_is(
    one: Bench, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    """Spark's checkpoint has another beginning by then; it would repeat what the old job has done, or leave it out."""
    move(one, 8)
    fail_before_the_plan(one, monkeypatch, sections(one))
    one.send(records(10, 18))
    move(one, later)
    events = one.run(**sections(one))
    assert f"at {later}" in events_of(events, "offsets")[0]["what"]
    assert ids(one) == list(range(later, 18))
    one.send(records(18, 20))
    one.run(**sections(one))
    assert ids(one) == list(range(later, 20))


def test_stateful_pipeline_that_failed_before_its_first_plan_begins_there_again_without_the_group(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has recorded where, so neither the group nor the section is needed any more."""
    move(one, 8)
    fail_before_the_plan(one, monkeypatch, sections(one))
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.delete_consumer_groups([old_job(one)])[old_job(one)].result(30)
    fail_before_the_plan(one, monkeypatch, sections(one))
    shutil.rmtree(one.folder / "state")
    one.run(**sections(one, follows=False))
    assert ids(one) == [8, 9]


def test_stateful_pipeline_of_the_latest_records_begins_where_it_was_started_first(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes while it is down is not left out, also in a partition that is new."""
    made = sections(one, follows=False, **LATEST)
    one.run_until(one.pipeline(**made), lambda found: found[-1]["event"] == "ready")
    shutil.rmtree(one.folder / "state")
    one.send(records(10, 13))
    one.grow(2)
    producer = Producer({"bootstrap.servers": one.kafka})  # a new one: others know one partition only
    for value in records(13, 15):
        producer.produce(one.source, value, partition=1)
    assert producer.flush(30) == 0
    one.run(**made)
    assert ids(one) == list(range(10, 15))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("later", [15, 4])
def test_stateful_pipeline_that_has_read_nothing_yet_begins_where_the_old_job_is(
    one: Bench, later: int, *, noted: bool
) -> None:
    """Spark has made a batch without records, as it does for operators with state."""
    move(one, 10)
    one.run_until(one.pipeline(**sections(one)), lambda found: found[-1]["event"] == "idle")
    if not noted:
        for each in (one.folder / "state" / "commits").iterdir():
            each.unlink()
    one.send(records(10, 18))
    move(one, later)
    one.run(**sections(one))
    one.run(**sections(one))
    assert ids(one) == list(range(later, 18))


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_stateful_pipeline_that_ended_while_spark_wrote_its_first_entry_begins(
    one: Bench, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """Spark writes an entry under another name first, and leaves that behind if it is stopped or killed just then."""
    made = sections(one, follows=False)
    fail_before_the_plan(one, monkeypatch, made)
    left = one.folder / "state" / log / f".0.{uuid4()}.tmp"
    left.write_text("v1")
    one.run(**made)
    assert ids(one) == list(range(10))


def test_reset_of_a_group_that_is_out_of_range_is_not_repeated(one: Bench) -> None:
    """The first start has chosen the latest record, and what comes after it is to be read."""
    made = sections(one, on_data_loss="reset", **LATEST)
    move(one, 3)
    expire(one.kafka, one.source, 6)
    one.run(**made)
    one.send(records(10, 13))
    one.run(**made)
    assert ids(one) == [10, 11, 12]


@pytest.mark.parametrize(("where", "step"), [(stream, "_fill"), (Checkpoint, "move")])
def test_reset_to_the_latest_records_is_not_repeated_by_a_start_that_fails(
    one: Bench, monkeypatch: pytest.MonkeyPatch, where: object, step: str
) -> None:
    """What comes after the first start is to be read, even if that fails before it has told Spark where to go on."""
    made = sections(one, follows=False, on_data_loss="reset", **LATEST)
    one.run(**made)
    one.send(records(10, 13))
    one.run(**made)
    one.send(records(13, 17))
    expire(one.kafka, one.source, 15)
    before = len(one.events)
    fail_at(one, monkeypatch, made, where, step)
    [note] = events_of(one.events[before:], "reset")
    assert "continuing at 17" in note["what"]
    one.send(records(17, 20))
    one.run(**made)
    assert ids(one) == [10, 11, 12, 17, 18, 19]


def test_reset_to_the_latest_records_is_not_repeated_before_the_first_batch(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has recorded where the pipeline begins, and records where it begins instead."""
    made = sections(one, follows=False, on_data_loss="reset", **LATEST)
    fail_at(one, monkeypatch, made, stream, "_fill")
    one.send(records(10, 15))
    expire(one.kafka, one.source, 13)
    fail_at(one, monkeypatch, made, stream, "_fill")
    one.send(records(15, 17))
    one.run(**made)
    assert ids(one) == [15, 16]


@pytest.mark.parametrize("again", [False, True])
def test_stateful_pipeline_whose_first_batch_without_records_failed_begins_where_the_old_job_is(
    one: Bench, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """The batch is planned and not delivered; the old job goes on for as long as the cause lasts.

    `again`: so it does while the next start fails, which has told the ledger and not the checkpoint where it begins.
    """
    move(one, 10)
    fail_at(one, monkeypatch, sections(one), runner, "deliver")
    one.send(records(10, 18))
    move(one, 15)
    if again:
        fail_at(one, monkeypatch, sections(one), Checkpoint, "move")
    one.run(**sections(one))
    one.run(**sections(one))
    assert ids(one) == [15, 16, 17]


def test_files_of_others_in_the_checkpoint_folder_stay(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder above, by mistake, may hold other checkpoints; only what Spark wrote of the first batch goes."""
    kept = [one.folder / "state" / name for name in ("sources/mine.py", "other/offsets/3")]
    for each in kept:
        each.parent.mkdir(parents=True)
        each.write_text("mine")
    fail_before_the_plan(one, monkeypatch, sections(one, follows=False))
    one.run(**sections(one, follows=False))
    assert ids(one) == list(range(10))
    assert [each.read_text() for each in kept] == ["mine"] * 2


def test_beginning_that_was_recorded_is_corrected_by_setting_offsets(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no state yet that other offsets would not fit."""
    move(one, 8)
    fail_before_the_plan(one, monkeypatch, sections(one))
    set_offset(one, sections(one), f"{one.source}:0=4")
    events = one.run(**sections(one))
    assert "at the offsets in the ledger" in events_of(events, "note")[0]["what"]
    assert ids(one) == list(range(4, 10))


def test_offsets_that_a_person_has_set_hold_after_a_batch_without_records(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group of the old job is elsewhere, and does not count any more."""
    move(one, 8)
    fail_before_the_plan(one, monkeypatch, sections(one))
    set_offset(one, sections(one), f"{one.source}:0=10")
    one.run(**sections(one))
    one.run(**sections(one))
    assert not ids(one)
    one.send(records(10, 12))
    one.run(**sections(one))
    assert ids(one) == [10, 11]


def test_topic_that_is_taken_out_and_put_back_before_the_first_batch_begins_where_it_was(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the pipeline does not start, because its first batch would forget the topic's offsets."""
    _, other = another_topic(one)
    produce(one.kafka, other, [Record(value) for value in records(20, 25)])
    both = sections(one, follows=False, topics=[one.source, other], **LATEST)
    alone = sections(one, follows=False, **LATEST)
    fail_before_the_plan(one, monkeypatch, both)
    for _ in range(2):
        with pytest.raises(errors.SourceChanged, match=f"offsets for {other}-0, which the configuration no longer"):
            one.run(**alone)
        set_offset(one, alone, f"{one.source}:0=9")
    produce(one.kafka, other, [Record(value) for value in records(25, 27)])
    one.run(**both)
    assert ids(one) == [9, 25, 26]


def test_offsets_that_are_kept_for_a_topic_that_is_gone_are_not_forgotten(
    one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern reads it, so it would begin anew if it came back; on_data_loss says whether to go on without it."""
    admin, other = another_topic(one)
    made = sections(one, follows=False, topics=[], pattern=f"{one.source}.*", **LATEST)
    fail_before_the_plan(one, monkeypatch, sections(one, follows=False, topics=[one.source, other], **LATEST))
    admin.delete_topics([other])[other].result(30)
    wait_until(lambda: other not in admin.list_topics(timeout=10).topics, "the topic to be gone", 30)
    set_offset(one, made, f"{one.source}:0=9")
    with pytest.raises(errors.SourceChanged, match=f"offsets for {other}-0, which no longer exist"):
        one.run(**made)
    one.run(**sections(one, follows=False, topics=[], pattern=f"{one.source}.*", on_data_loss="reset", **LATEST))
    assert ids(one) == [9]


def test_beginning_that_was_recorded_without_a_checkpoint_holds_with_one(one: Bench) -> None:
    """The pipeline had no batch yet, so a function with state may begin there."""
    move(one, 10)
    made = sections(one)
    one.run(**{**made, "checkpoint": "ledger", "process": {}})
    one.send(records(10, 13))
    one.run(**sections(one, follows=False))
    assert ids(one) == [10, 11, 12]


def test_folder_with_a_finished_batch_is_refused_to_a_pipeline_without_any(one: Bench) -> None:
    """It is another pipeline's, or the ledger is lost; Spark would continue there."""
    one.run(**sections(one, follows=False))
    other = one.pipeline(**sections(one, follows=False)).model_copy(update={"pipeline": f"{one.name}-2"})
    with pytest.raises(errors.CheckpointMismatch, match="ends with batch"):
        one.run(other)
    assert ids(one) == list(range(10))
