"""`tailrace backfill` delivers a range of the past into another topic, once, next to the pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import Producer

from support.drivers import count, kill_tree, written_file
from support.expiry import expire
from support.pipelines import Bench
from support.threads import Deliver, Line, Tearing, Torn, deleted, first_part_only, recreated, run_in_threads
from tailrace import errors
from tailrace.admin.backfill import Extent, Request, begin, derived, extent
from tailrace.admin.since import first_since
from tailrace.cli.backfill import _deliver, told_apart
from tailrace.cli.terminal import Output
from tailrace.config import Pipeline
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.status.events import ignored
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = pytest.mark.integration

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LIMIT = 250.0  # seconds, on a busy machine


def fill(kafka: str, topic: str, partitions: int, each: int) -> list[bytes]:
    """Write three hours of records to each partition, and return those of the second hour, sorted."""
    wanted = []
    for hour in range(3):
        at = int((NOON + timedelta(hours=hour)).timestamp() * 1000)
        for partition in range(partitions):
            values = [b"%d-%d-%05d" % (hour, partition, number) for number in range(each)]
            produce(kafka, topic, [Record(value, partition=partition, timestamp=at) for value in values])
            wanted += values if hour == 1 else []
    return sorted(wanted)


def request(into: str, **options: Any) -> Request:
    """Return a request for the second hour."""
    return Request(NOON + timedelta(hours=1), NOON + timedelta(hours=2), into, **options)


def settled(pipeline: Pipeline, asked: Request) -> Extent:
    """Return the range of a backfill, recorded if it was not."""
    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger:
        found = extent(pipeline, asked, cluster, ledger)
        if not found.begun:
            begin(pipeline, found, cluster, ledger)
            found = extent(pipeline, asked, cluster, ledger)
        return found


@pytest.fixture
def one(line: Callable[..., Line]) -> Line:
    """Return a pipeline of two partitions."""
    return line(2)


def run_backfill(one: Line, pipeline: Pipeline, how: Deliver | None = None) -> None:
    """Run the derived pipeline in threads."""

    def engine() -> ThreadEngine:
        if how is None:
            return ThreadEngine(pipeline, one.folder, "run")
        return Tearing(pipeline, one.folder, "run", how)

    run_in_threads(pipeline, one.folder, "run", engine, ignored, until_read=True)


def into(one: Line) -> str:
    """Create a topic to backfill into."""
    return one.topics("into", 2)


def test_interrupted_backfill_continues_its_range_exactly_once(one: Line) -> None:
    """Records that arrive meanwhile, even inside the range, change nothing; nor do restarts after its end."""
    wanted, topic = fill(one.kafka, one.source, 2, 50), into(one)
    one.run()
    before = one.values()
    asked = request(topic)
    pipeline = derived(one.pipeline(batch={"max_records": 30}), asked, datetime.now(UTC))
    assert settled(pipeline, asked).offsets == 100
    with pytest.raises(errors.QueryFailed):
        run_backfill(one, pipeline, first_part_only)
    late = int(asked.since.timestamp() * 1000)
    produce(one.kafka, one.source, [Record(b"late", partition=0, timestamp=late)])
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted
    assert one.values() == before
    assert settled(pipeline, asked).finished
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted
    one.run()
    assert one.values() == sorted([*before, b"late"])


def test_records_before_the_bound_may_be_deleted_once_they_are_read(one: Line) -> None:
    """Retention deletes the old records of a backfill first; a restart must not miss them."""
    wanted, topic = fill(one.kafka, one.source, 2, 50), into(one)
    asked = request(topic)
    pipeline = derived(one.pipeline(batch={"max_records": 30}), asked, datetime.now(UTC))
    settled(pipeline, asked)
    run_backfill(one, pipeline)
    expire(one.kafka, one.source, 150)
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted


@pytest.mark.parametrize("lose", ["taken out", "deleted"])
def test_topic_may_go_once_a_backfill_has_read_its_range(one: Line, lose: str) -> None:
    """The run that was interrupted is finished without it, and ends."""
    wanted, topic = fill(one.kafka, one.source, 2, 50), into(one)
    whole = one.topics("whole", 1)
    at = int((NOON + timedelta(hours=1)).timestamp() * 1000)
    produce(one.kafka, whole, [Record(b"of another topic", timestamp=at)])
    wanted = sorted([*wanted, b"of another topic"])
    asked, both = request(topic), {"pattern": f"{one.source}|{whole}", "topics": []}
    pipeline = derived(one.pipeline(source=both, batch={"max_records": 30}), asked, datetime.now(UTC))
    assert settled(pipeline, asked).offsets == 101

    def first_batch_only(engine: ThreadEngine, *given: Any) -> NoReturn:
        ThreadEngine.deliver(engine, *given)
        raise Torn

    with pytest.raises(errors.QueryFailed):
        run_backfill(one, pipeline, first_batch_only)
    assert b"of another topic" in one.values(topic)
    if lose == "deleted":
        deleted(one, whole)
    else:
        pipeline = derived(one.pipeline(batch={"max_records": 30}), asked, datetime.now(UTC))
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted
    ended = settled(pipeline, asked)
    assert (ended.finished, ended.offsets) == (True, 0)
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted


def test_backfill_is_refused_without_a_topic_whose_range_it_has_not_read(one: Line) -> None:
    """It would wait for its records for ever."""
    fill(one.kafka, one.source, 2, 50)
    rest = one.topics("rest", 1)
    at = int((NOON + timedelta(hours=1)).timestamp() * 1000)
    produce(one.kafka, rest, [Record(b"of another topic", timestamp=at)])
    asked = request(into(one))
    pipeline = derived(one.pipeline(source={"topics": [one.source, rest]}), asked, datetime.now(UTC))
    settled(pipeline, asked)
    with pytest.raises(errors.PlanOfAnother, match=f"a backfill of {rest}, too"):
        run_backfill(one, derived(one.pipeline(), asked, datetime.now(UTC)))


def test_range_ends_before_records_that_arrive_while_it_is_resolved(one: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a record after `--to` ends at its end, which grows: later records are not of the range."""
    until = (NOON + timedelta(hours=2)).timestamp()
    produce(one.kafka, one.source, [Record(b"early", partition=0, timestamp=int(until - 60) * 1000)] * 5)
    offsets = Cluster.offsets

    def arriving(*given: Any) -> Any:
        found = offsets(*given)
        produce(one.kafka, one.source, [Record(b"late", partition=0, timestamp=int(until + 60) * 1000)])
        return found

    monkeypatch.setattr(Cluster, "offsets", arriving)
    assert first_since(Cluster(one.pipeline().kafka), [(one.source, 0)], until) == {(one.source, 0): 5}


def test_range_without_a_record_is_refused(one: Line) -> None:
    """It would count as finished for ever, also if its records arrive late."""
    asked = request(into(one))
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    with pytest.raises(errors.OptionRefused, match="hold no record"):
        settled(pipeline, asked)
    fill(one.kafka, one.source, 2, 5)
    assert settled(pipeline, asked).offsets == 10


def test_range_with_an_open_transaction_is_refused_until_that_ends(one: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records, and those committed behind it, belong to the range, but cannot be read yet; one about to end may."""
    asked, at = request(into(one)), int((NOON + timedelta(hours=1)).timestamp() * 1000)
    later = int((NOON + timedelta(hours=2)).timestamp() * 1000)
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"open-{one.source}"})
    producer.init_transactions(30)
    produce(one.kafka, one.source, [Record(b"before", partition=0, timestamp=at)])
    producer.begin_transaction()
    producer.produce(one.source, b"open", partition=0, timestamp=at)
    producer.flush(30)
    produce(one.kafka, one.source, [Record(b"behind", partition=0, timestamp=at)])
    produce(one.kafka, one.source, [Record(b"after", partition=0, timestamp=later)])
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    with monkeypatch.context() as impatient:
        impatient.setattr("tailrace.admin.backfill._ENDING", 0.3)
        with pytest.raises(errors.OptionRefused, match="open transaction"):
            settled(pipeline, asked)
    ending = threading.Timer(1, producer.commit_transaction, (30,))
    ending.start()
    settled(pipeline, asked)
    ending.join()
    run_backfill(one, pipeline)
    assert one.values(asked.into) == [b"before", b"behind", b"open"]


def test_range_of_a_transactional_topic_has_all_its_records_and_no_others(one: Line) -> None:
    """A broker asked for a time finds the end of the first transaction, which is as old as its commit."""
    producer = Producer({"bootstrap.servers": one.kafka, "transactional.id": f"late-{one.source}"})
    producer.init_transactions(30)
    for hour, value in ((0, b"a"), (0, b"b"), (1, b"c"), (1, b"d"), (2, b"e")):
        producer.begin_transaction()
        at = int((NOON + timedelta(hours=hour)).timestamp() * 1000)
        producer.produce(one.source, value, partition=0, timestamp=at)
        producer.commit_transaction(30)
    asked = request(into(one))
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    settled(pipeline, asked)
    run_backfill(one, pipeline)
    assert one.values(asked.into) == [b"c", b"d"]


def test_range_that_a_former_leader_would_cut_short_is_refused(one: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded once: what that broker lacks would be left out, and the backfill said to be finished."""
    fill(one.kafka, one.source, 2, 50)
    asked = request(into(one))
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    real = Cluster.agreed_latest
    with monkeypatch.context() as former:
        former.setattr(Cluster, "agreed_latest", lambda *given: {each: at + 9 for each, at in real(*given).items()})
        with pytest.raises(errors.KafkaFailed, match="2 partitions end too early"):
            settled(pipeline, asked)
    assert settled(pipeline, asked).offsets == 100


def test_range_that_retention_may_have_cut_is_refused_unless_the_rest_is_accepted(one: Line) -> None:
    """An offset that is left says nothing of those before it, but an older record does."""
    fill(one.kafka, one.source, 2, 50)
    topic = into(one)
    expire(one.kafka, one.source, 60, 1)
    asked = request(topic)
    pipeline = derived(one.pipeline(batch={"max_records": 30}), asked, datetime.now(UTC))
    with pytest.raises(errors.OffsetsOutOfRange, match=rf"{one.source}-1 from 60"):
        settled(pipeline, asked)
    assert settled(pipeline, request(topic, partial=True)).offsets == 90


def test_rest_of_a_range_is_read_if_retention_deletes_its_beginning_while_it_is_resolved(
    one: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is then behind the log's: such a range could never be read, and --partial would not help."""
    wanted, topic = fill(one.kafka, one.source, 2, 50), into(one)
    earliest = Cluster.earliest

    def deleting(cluster: Cluster, places: Iterable[tuple[str, int]]) -> Any:
        listed = list(places)
        if (one.source, 1) in listed:
            expire(one.kafka, one.source, 60, 1)
        return earliest(cluster, listed)

    asked = request(topic, partial=True)
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "earliest", deleting)
        assert settled(pipeline, asked).offsets == 90
    run_backfill(one, pipeline)
    assert one.values(topic) == [value for value in wanted if not b"1-1-" <= value < b"1-1-00010"]


def test_backfill_overtaken_by_retention_names_a_way_out_that_spares_the_pipeline(one: Line) -> None:
    """With on_data_loss in the file at hand the backfill is refused again, and the pipeline would skip a loss."""
    wanted, topic = fill(one.kafka, one.source, 2, 50), into(one)
    one.run()
    for asked in (request(topic), request(topic, partial=True)):
        pipeline = derived(one.pipeline(source={"on_data_loss": "reset"}), asked, datetime.now(UTC))
        settled(pipeline, asked)
        expire(one.kafka, one.source, 60, 1)
        with pytest.raises(errors.OffsetsOutOfRange) as caught, told_apart(pipeline.pipeline, one.name, topic):
            run_backfill(one, pipeline)
        assert "leave source.on_data_loss alone" in caught.value.then
        assert "--partial --into TOPIC" in caught.value.then
        assert topic in caught.value.then
    other = request(one.topics("other", 2), partial=True)
    pipeline = derived(one.pipeline(), other, datetime.now(UTC))
    assert settled(pipeline, other).offsets == 90
    run_backfill(one, pipeline)
    assert one.values(other.into) == [value for value in wanted if not b"1-1-" <= value < b"1-1-00010"]


def test_backfill_of_a_topic_that_was_created_again_is_refused(line: Callable[..., Line]) -> None:
    """The offsets of the range mean nothing in another topic."""
    one = line(1)
    fill(one.kafka, one.source, 1, 5)
    topic = into(one)
    asked = request(topic)
    pipeline = derived(one.pipeline(batch={"max_records": 30}), asked, datetime.now(UTC))
    settled(pipeline, asked)
    recreated(one)
    fill(one.kafka, one.source, 1, 5)
    with pytest.raises(errors.PlanOfAnother):
        run_backfill(one, pipeline)
    assert one.values(topic) == []


def test_range_of_a_topic_that_is_created_again_before_it_is_recorded_is_refused(line: Callable[..., Line]) -> None:
    """With the id of the new topic, offsets of the old one would pass for its own; a second command asks again."""
    one = line(1)
    fill(one.kafka, one.source, 1, 50)
    topic = into(one)
    asked = request(topic)
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger:
        found = extent(pipeline, asked, cluster, ledger)
        recreated(one)
        wanted = fill(one.kafka, one.source, 1, 200)
        with pytest.raises(errors.PlanOfAnother, match="created again"):
            begin(pipeline, found, cluster, ledger)
    assert one.values(topic) == []
    settled(pipeline, asked)
    run_backfill(one, pipeline)
    assert one.values(topic) == wanted


def test_finished_backfill_whose_topic_is_gone_says_so(one: Line, capsys: pytest.CaptureFixture[str]) -> None:
    """What it delivered is gone too, and the command would not deliver it again."""
    fill(one.kafka, one.source, 2, 5)
    topic = into(one)
    asked = request(topic)
    pipeline = derived(one.pipeline(), asked, datetime.now(UTC))
    settled(pipeline, asked)
    run_backfill(one, pipeline)
    _deliver(pipeline, one.folder, asked, Output.TEXT, dry_run=False)
    assert "it was finished before" in capsys.readouterr().err
    deleted(one, topic)
    with pytest.raises(errors.TopicUnknown, match="the topic that it has written to"):
        _deliver(pipeline, one.folder, asked, Output.TEXT, dry_run=False)


@pytest.mark.slow
@pytest.mark.takes(30)
def test_killed_backfill_is_finished_by_the_same_command(bench: Callable[..., Bench]) -> None:
    """A kill -9 of the whole tree in mid-range loses and repeats nothing; a third start writes nothing."""
    one = bench(partitions=2)
    wanted = fill(one.kafka, one.source, 2, 2000)
    topic = one.topics("into", 2)
    file = written_file(one, batch={"max_records": 200})
    log = one.folder / "events"
    call = [
        sys.executable, "-m", "tailrace.cli.main", "backfill", str(file), "--from", "2026-01-02T13:00Z",
        "--to", "2026-01-02T14:00Z", "--into", topic, "--output", "json",
    ]  # fmt: skip
    with log.open("wb") as out, Path(f"{log}.err").open("wb") as err:
        process = subprocess.Popen(call, stdout=out, stderr=err, start_new_session=True)
    wait_until(lambda: count(log, "written") >= 3 or process.poll() is not None, "three batches", LIMIT)
    assert process.poll() is None, Path(f"{log}.err").read_text()
    kill_tree(process)
    process.wait(30)
    assert 0 < len(consume(one.kafka, topic)) < len(wanted)
    for starts in range(2):
        again = subprocess.run(call, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert again.returncode == 0, again.stdout + again.stderr
        last = json.loads(again.stdout.splitlines()[-1])
        assert (last["finished"], last["left"]) == (True, 0)
        assert ("written" in again.stdout) == (starts == 0)
        assert sorted(each.value or b"" for each in consume(one.kafka, topic)) == wanted
