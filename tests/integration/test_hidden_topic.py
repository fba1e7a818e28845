"""A topic of a pattern that the pipeline may not describe for a while: its positions outlive that."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from support.pipelines import QUIET, as_json, events_of
from support.plans import leave_stream_plan
from support.threads import run_in_threads
from tailrace import errors
from tailrace.admin.backfill import Request, derived, extent
from tailrace.admin.offsets import apply, base, look
from tailrace.admin.targets import targets
from tailrace.config import Pipeline, Sink
from tailrace.driver.shutdown import Stop
from tailrace.driver.thread_engine import ThreadEngine
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation, needed, on_topic, to_create
from tailrace.progress.ledger import Ledger
from tailrace.progress.stores import open_store
from tailrace.startup.run import run
from tailrace.status.events import Event
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka
from tailrace.testing.secured import Door, Security

pytestmark = pytest.mark.integration


@dataclass
class Case:
    """A pipeline that reads two topics by a pattern, with rights that change."""

    security: Security
    folder: Path
    name: str
    topics: tuple[str, str]
    sink: str
    door: Door
    principal: str
    runs: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def pipeline(self, loss: str) -> Pipeline:
        """Return the pipeline."""
        return Pipeline.model_validate(
            {
                "pipeline": self.name,
                "kafka": {"bootstrap.servers": self.door.bootstrap_servers, "options": dict(self.door.options)},
                "source": {"pattern": f"in-{self.name}-.*", "on_data_loss": loss},
                "sink": {"topic": self.sink, "format": "raw"},
                "ledger": {"topic": f"{self.name}.ledger", "partitions": 8},
                "batch": {"target": 0},
            }
        )

    def run(
        self, loss: str, stop: Stop | None = None, heard: Callable[[dict[str, Any]], object] = lambda event: None
    ) -> list[dict[str, Any]]:
        """Run it, until all is read or until the stop; return the events, which `heard` gets as they come."""
        self.runs += 1
        pipeline, run = self.pipeline(loss), f"run-{self.runs}"
        events: list[dict[str, Any]] = []

        def emit(event: Event) -> None:
            events.append(event.as_dict())
            self.events.append(events[-1])
            heard(events[-1])

        def engine() -> ThreadEngine:
            return ThreadEngine(pipeline, self.folder, run)

        run_in_threads(pipeline, self.folder, run, engine, emit, stop=stop, until_read=stop is None)
        return events

    def send(self, topic: str, value: bytes) -> None:
        """Put a record into a source topic, as the administrator."""
        admin = self.security.administrator
        produce(admin.bootstrap_servers, topic, [Record(value)], options=admin.options)

    def values(self) -> list[bytes]:
        """Return what is in the sink."""
        admin = self.security.administrator
        return sorted(each.value or b"" for each in consume(admin.bootstrap_servers, self.sink, options=admin.options))

    def delete(self) -> None:
        """Delete the first topic."""
        client, first = self._client(), self.topics[0]
        client.delete_topics([first])[first].result(30)
        wait_until(lambda: first not in client.list_topics(timeout=10).topics, "the topic to be gone")

    def create(self, *values: bytes) -> None:
        """Create the first topic again, with these records."""
        client, first = self._client(), self.topics[0]

        def created() -> bool:
            try:
                client.create_topics([NewTopic(first, 1, 1)])[first].result(30)
            except KafkaException:  # it is still being deleted
                return False
            return True

        wait_until(created, "the topic to be created")
        wait_until(lambda: first in client.list_topics(timeout=10).topics, "the topic to be there")
        for value in values:
            self.send(first, value)

    def offsets_set(self, offset: int) -> None:
        """Move the first topic's offset, as `tailrace offsets set` does."""
        pipeline = self.pipeline("stop")
        cluster = Cluster(pipeline.kafka)
        with Ledger.of(pipeline) as ledger, contextlib.closing(open_store(pipeline, self.folder)) as store:
            now = look(pipeline, cluster, ledger, store)
            target = targets(pipeline, cluster, base(now, True), {(self.topics[0], 0): offset})
            apply(pipeline, cluster, now, target, ledger)

    def _client(self) -> AdminClient:
        admin = self.security.administrator
        return AdminClient({"bootstrap.servers": admin.bootstrap_servers, **admin.options})

    def hide(self) -> None:
        """Withdraw every right on the first topic."""
        self.security.withdraw(self.principal, [on_topic(Operation.READ, self.topics[0])])

    def show(self) -> None:
        """Grant them again."""
        self.security.allow(self.principal, [on_topic(Operation.READ, self.topics[0])])


@pytest.fixture
def case(tailrace_secured_kafka: EmbeddedKafka, tmp_path: Path) -> Case:
    """Return a pipeline that may read both topics, each with one record."""
    security, name = tailrace_secured_kafka.security, f"s-{uuid.uuid4().hex[:8]}"
    admin = security.administrator
    topics = Topics(admin.bootstrap_servers, admin.options)
    first, second = (topics(f"in-{name}-{letter}") for letter in "ab")
    one = Case(
        security, tmp_path, name, (first, second), topics("out"), security.user(name, "password"), f"User:{name}"
    )
    pipeline = one.pipeline("stop")
    security.allow(one.principal, [*needed(pipeline, [first, second]), *to_create(pipeline)])
    one.send(first, b"a")
    one.send(second, b"b")
    return one


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_that_was_hidden_is_continued_by_the_next_starts(case: Case, loss: str) -> None:
    """Runs that cannot see it keep its positions; the run that can continues there."""
    case.run(loss)
    case.hide()
    for value in (b"c", b"d"):  # the second knows the positions from the plan of the first only
        case.send(case.topics[1], value)
        events = case.run(loss)
        assert events_of(events, "reset") == []
    case.show()
    case.send(case.topics[0], b"e")
    assert events_of(case.run(loss), "reset") == []
    assert case.values() == [b"a", b"b", b"c", b"d", b"e"]


def test_moved_offsets_keep_those_of_a_topic_that_was_hidden(case: Case) -> None:
    """The commands show where it continues once it is seen, and change only what they are asked to."""
    case.run("stop")
    case.hide()
    case.send(case.topics[1], b"c")
    case.run("stop")
    pipeline, first, second = case.pipeline("stop"), (case.topics[0], 0), (case.topics[1], 0)
    cluster = Cluster(pipeline.kafka)
    with Ledger.of(pipeline) as ledger, contextlib.closing(open_store(pipeline, case.folder)) as store:
        now = look(pipeline, cluster, ledger, store)
        assert now.positions == {second: 2}
        apply(pipeline, cluster, now, targets(pipeline, cluster, base(now, False), {second: 1}), ledger)
        case.show()
        assert look(pipeline, cluster, ledger, store).positions == {first: 1, second: 1}
    case.run("stop")
    assert case.values() == [b"a", b"b", b"c", b"c"]


def back(case: Case) -> None:
    """Hide the first topic for a batch of the other one; its offsets are settled again with no batch of it."""
    case.run("stop")
    case.hide()
    case.send(case.topics[1], b"c")
    case.run("stop")
    case.show()
    case.run("stop")


def test_topic_that_was_seen_again_and_then_recreated_is_refused(case: Case) -> None:
    """Its id is known from then on, not only once a batch has read it: records of the new topic would be skipped."""
    back(case)
    case.delete()
    case.create(b"n1", b"n2")
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        case.run("stop")
    assert events_of(case.run("reset"), "reset") != []
    assert case.values() == [b"a", b"b", b"c", b"n1", b"n2"]


def test_topic_that_is_hidden_a_second_time_keeps_its_offsets(case: Case) -> None:
    """The other topic is read meanwhile, as the first time."""
    back(case)
    case.hide()
    case.send(case.topics[1], b"d")
    case.run("stop")
    case.show()
    case.send(case.topics[0], b"e")
    case.run("stop")
    assert case.values() == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_that_is_recreated_while_a_driver_starts_is_noticed(case: Case, loss: str) -> None:
    """It was missing when the start compared the ids, and its old offset is in the new topic's range."""
    case.run(loss)
    case.delete()

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            case.create(b"n1", b"n2")

    if loss == "stop":
        with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
            case.run(loss, heard=heard)
        case.run("reset")
    else:
        case.run(loss, heard=heard)
    assert case.values() == [b"a", b"b", b"n1", b"n2"]


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_offset_that_is_set_in_a_recreated_topic_is_the_one_that_counts(case: Case, loss: str) -> None:
    """What was kept of the topic before it is forgotten, or each start would refuse it, or read it from the start."""
    case.run("stop")
    case.hide()
    case.send(case.topics[1], b"c")
    case.run("stop")
    case.show()
    case.delete()
    case.create(b"n1", b"n2", b"n3")
    with pytest.raises(errors.PlanOfAnother):
        case.run("stop")
    case.offsets_set(1)
    case.run(loss)
    assert case.values() == [b"a", b"b", b"c", b"n2", b"n3"]


@contextlib.contextmanager
def running(case: Case, loss: str) -> Iterator[Callable[[Callable[[], bool], str], None]]:
    """Run a driver while the block runs; yield a wait for a condition, which raises the error if one has ended it."""
    stop, failed = Stop(), list[BaseException]()

    def run() -> None:
        try:
            case.run(loss, stop)
        except BaseException as error:
            failed.append(error)

    def check() -> None:
        if failed:
            raise failed[0]

    def until(condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            check()
            return condition()

        wait_until(holds, what, 60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield until
    finally:
        stop("the end of the test")
        thread.join(60)
    check()


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_that_is_deleted_while_a_driver_runs_is_lost(case: Case, loss: str) -> None:
    """The driver has listed it a moment before, and would ask for its end; what a loss means is configured."""
    ended = pytest.raises(errors.SourceChanged) if loss == "stop" else contextlib.nullcontext()
    with ended, running(case, loss) as until:
        until(lambda: {b"a", b"b"} <= {*case.values()}, "the first records")
        case.delete()
        until(lambda: "no longer exists" in str(events_of(case.events, "reset")), "the topic to count as lost")
        case.send(case.topics[1], b"c")
        until(lambda: b"c" in case.values(), "a record of the other topic")


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_running_driver_continues_a_topic_that_was_hidden(case: Case, loss: str) -> None:
    """It reads the other topic meanwhile."""
    with running(case, loss) as until:
        until(lambda: {b"a", b"b"} <= {*case.values()}, "the first records")
        case.hide()
        until(lambda: "may not be described" in str(case.events), "the loss of the topic")
        case.send(case.topics[1], b"c")
        until(lambda: b"c" in case.values(), "a record of the other topic")
        case.show()
        case.send(case.topics[0], b"d")
        until(lambda: b"d" in case.values(), "a record of the first topic")
    assert events_of(case.events, "reset") == []
    assert case.values() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_hidden_before_the_first_batch_after_a_stream_plan_keeps_its_offsets(case: Case, loss: str) -> None:
    """The last plan is one of Spark's, which names no topic ids; its records would come out a second time."""
    leave_stream_plan(case.pipeline(loss), {(topic, 0): 1 for topic in case.topics})
    with running(case, loss) as until:
        until(lambda: "'idle'" in str(case.events), "the driver to be idle")
        case.hide()
        until(lambda: "may not be described" in str(case.events), "the loss of the topic")
    case.show()
    case.send(case.topics[0], b"c")
    assert events_of(case.run(loss), "reset") == []
    assert case.values() == [b"c"]


def test_markers_that_may_not_be_read_are_not_taken_for_missing(case: Case) -> None:
    """The brokers refuse each partition and not the request; the batch would be delivered a second time."""
    case.run("stop")
    pipeline = case.pipeline("stop")
    rights = [each for each in needed(pipeline, list(case.topics)) if pipeline.ledger.topic == each.name]
    with Ledger.of(pipeline) as ledger:
        before = ledger.markers()
        case.security.withdraw(case.principal, rights)

        def denied() -> bool:
            try:
                return ledger.markers() != before
            except errors.NotAuthorized as error:
                found.append(error)
                return True

        found: list[errors.NotAuthorized] = []
        wait_until(denied, "the brokers to know of the withdrawal", 30)
        case.security.allow(case.principal, rights)
    assert before
    assert f"{Operation.READ} on topic {pipeline.ledger.topic}" in found[0].what


@pytest.mark.takes(20)
@pytest.mark.parametrize("loss", ["stop", "reset"])
def test_topic_that_is_hidden_from_a_running_stateful_pipeline_keeps_its_offsets(
    case: Case, spark: SparkSession, loss: str
) -> None:
    """Spark is told that it is gone. Its offsets have no place but in Spark's log, so the pipeline does not go on."""
    stateful = {"checkpoint": str(case.folder / "state"), "spark": QUIET}
    pipeline = case.pipeline(loss).model_copy(update=stateful)
    case.security.allow(case.principal, needed(pipeline, list(case.topics)))
    events: list[dict[str, Any]] = []

    def heard(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "idle" and len(events_of(events, "idle")) == 1:
            case.hide()
            wait_until(lambda: case.topics[0] not in Cluster(pipeline.kafka).topics(), "the topic to be hidden")
            case.send(case.topics[1], b"c")

    with pytest.raises(errors.NotAuthorized, match="may not be described"):
        run(pipeline, case.folder, emit=as_json(heard), spark=spark)
    case.show()
    case.send(case.topics[0], b"d")
    run(pipeline, case.folder, batch=True, emit=as_json(events.append), spark=spark)
    assert events_of(events, "reset") == []
    assert case.values() == [b"a", b"b", b"c", b"d"]


def reset_to_second(case: Case) -> None:
    """Reset the offsets to one of the second topic, as if no answer had shown the first."""
    pipeline = case.pipeline("stop")
    cluster, second = Cluster(pipeline.kafka), (case.topics[1], 0)
    with contextlib.closing(open_store(pipeline, case.folder)) as store, Ledger.of(pipeline) as ledger:
        now = look(pipeline, cluster, ledger, store)
        targets(pipeline, cluster, base(now, False), {second: 1}, alone=True)


def test_reset_does_not_forget_a_topic_that_is_hidden_just_now(case: Case) -> None:
    """Once it is seen, it would be read from its beginning."""
    case.run("stop")
    case.hide()
    with pytest.raises(errors.NotAuthorized, match=f"offsets of {case.topics[0]}, which may not be described"):
        reset_to_second(case)


def test_reset_does_not_forget_a_topic_that_one_answer_lacked(case: Case) -> None:
    """The broker lagged when the command asked for what there is, and does not lag any more."""
    case.run("stop")
    with pytest.raises(errors.KafkaFailed, match=f"did not show {case.topics[0]}-0 yet"):
        reset_to_second(case)


@pytest.mark.parametrize("away", [False, True])
def test_topic_that_is_hidden_from_a_new_name_is_not_read_anew(case: Case, *, away: bool) -> None:
    """The earlier name has its offsets, in its last plan or kept aside. Without them it would begin anew once seen."""
    case.run("stop")
    case.hide()
    if away:
        case.send(case.topics[1], b"c")
        case.run("stop")
    name = f"{case.name}-2"
    begins = Pipeline.model_validate(
        case.pipeline("stop").model_dump(by_alias=True)
        | {"pipeline": name, "offsets": {"from": f"tailrace.{case.name}"}}
    )
    case.security.allow(case.principal, [*needed(begins, case.topics[1:]), *to_create(begins)])

    def run_renamed() -> None:
        def engine() -> ThreadEngine:
            return ThreadEngine(begins, case.folder, "renamed")

        run_in_threads(begins, case.folder, "renamed", engine, lambda event: None, until_read=True)

    with pytest.raises(errors.NotAuthorized, match=f"has offsets of {case.topics[0]}"):
        run_renamed()
    case.show()
    run_renamed()
    case.hide()
    with pytest.raises(errors.NotAuthorized, match=f"has offsets of {case.topics[0]}"):
        run_renamed()  # it has read nothing yet, so it begins where the earlier name is by now
    assert case.values() == [b"a", b"b", *([b"c"] if away else [])]


def test_topic_that_is_hidden_from_a_backfill_is_not_left_out(case: Case) -> None:
    """Its range is recorded once, and would count as delivered without that topic."""
    case.run("stop")
    case.hide()
    since, until = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-2, -1))
    live = case.pipeline("stop")
    asked = Request(since, until, case.sink, of=live.pipeline)
    pipeline = derived(
        live.model_copy(update={"sink": Sink(topic="elsewhere", format="raw")}), asked, datetime.now(UTC)
    )
    case.security.allow(case.principal, [*needed(pipeline, case.topics[1:]), *to_create(pipeline)])
    with Ledger.of(pipeline) as ledger, pytest.raises(errors.NotAuthorized, match=f"has offsets of {case.topics[0]}"):
        extent(pipeline, asked, Cluster(pipeline.kafka), ledger)
