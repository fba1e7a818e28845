"""A pipeline on brokers that deny by default: with exactly the rights that the how-to lists, and without each."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from support.pipelines import QUIET, as_json
from tailrace import errors
from tailrace.cli.main import app
from tailrace.config import Delivery, Pipeline
from tailrace.gateway import Assignment
from tailrace.gateway.librdkafka import messages
from tailrace.gateway.markers import MarkerReader
from tailrace.gateway.producers import SinkProducer
from tailrace.kafka.clients import client_options
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.rights import Operation, for_samples, needed, on_topic, to_create
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.plan import BatchId, SinkPartition
from tailrace.startup.run import run
from tailrace.testing import Record, Topics, consume, produce, wait_until
from tailrace.testing.embedded import EmbeddedKafka
from tailrace.testing.secured import Authority, Door, Security

pytestmark = pytest.mark.integration

GOOD, BAD = b'{"id": 1}', b"{broken"


@dataclass
class Case:
    """One pipeline on the secured brokers, and its principal."""

    security: Security
    spark: SparkSession
    folder: Path
    name: str
    source: str
    sink: str
    door: Door
    principal: str

    def pipeline(self, **sections: Any) -> Pipeline:
        """Return the pipeline, from JSON to JSON, so that a record can be rejected."""
        base: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.door.bootstrap_servers, "options": dict(self.door.options)},
            "source": {"topics": [self.source], "format": "json", "schema": "id long"},
            "sink": {"topic": self.sink, "format": "json"},
            "ledger": {"topic": f"{self.name}.ledger", "partitions": 4},
            "batch": {"target": 0},
            "spark": QUIET,
        }
        return Pipeline.model_validate(base | sections)

    def file(self, **sections: Any) -> Path:
        """Write the pipeline to a file."""
        data = self.pipeline(**sections).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        file = self.folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(data))
        return file

    def run(self, **sections: Any) -> list[dict[str, Any]]:
        """Read what exists now, then end; return the events."""
        events: list[dict[str, Any]] = []
        run(self.pipeline(**sections), self.folder, batch=True, emit=as_json(events.append), spark=self.spark)
        return events

    def send(self, *values: bytes) -> None:
        """Put records into the source topic, as the administrator."""
        admin = self.security.administrator
        records = [Record(value, key=b"k%d" % number) for number, value in enumerate(values)]
        produce(admin.bootstrap_servers, self.source, records, options=admin.options)

    def read(self, topic: str) -> list[bytes | None]:
        """Return the values in a topic, as the administrator sees them."""
        admin = self.security.administrator
        return [each.value for each in consume(admin.bootstrap_servers, topic, options=admin.options)]

    def make_own_topics(self) -> None:
        """Create the pipeline's own topics, as an administrator does if the pipeline may not."""
        pipeline, admin = self.pipeline(), self.security.administrator
        kafka = pipeline.kafka.model_copy(
            update={"bootstrap_servers": admin.bootstrap_servers, "options": dict(admin.options)}
        )
        cluster = Cluster(kafka)
        cluster.ensure(pipeline.ledger.topic, pipeline.ledger.partitions, -1, LEDGER_SETTINGS)
        cluster.ensure(pipeline.rejected_topic, 1, -1, {})


@pytest.fixture(params=["password", "certificate"])
def case(request: pytest.FixtureRequest, secured: Make) -> Case:
    """Return a pipeline whose principal uses a password, and one that uses a certificate."""
    return secured(request.param)


class Make:
    """Makes cases, each with its own name."""

    def __init__(self, kafka: EmbeddedKafka, spark: SparkSession, folder: Path) -> None:
        self._kafka, self._spark, self._folder = kafka, spark, folder

    def __call__(self, how: str = "password") -> Case:
        """Return a case whose principal has no rights yet."""
        security, name = self._kafka.security, f"s-{uuid.uuid4().hex[:8]}"
        admin = security.administrator
        topics = Topics(admin.bootstrap_servers, admin.options)
        if how == "password":
            door, principal = security.user(name, 'pass"word\\; 1'), f"User:{name}"
        else:
            door, principal = security.certificate(name), f"User:CN={name}"
        return Case(security, self._spark, self._folder, name, topics("in", 2), topics("out"), door, principal)


@pytest.fixture
def secured(tailrace_secured_kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Make:
    """Return a factory of cases on the secured brokers."""
    return Make(tailrace_secured_kafka, spark, tmp_path)


def test_pipeline_runs_exactly_once_with_the_listed_rights(case: Case) -> None:
    """Its own topics are created, records delivered and rejected, and a second run continues after the first."""
    pipeline = case.pipeline()
    case.security.allow(case.principal, [*needed(pipeline), *to_create(pipeline)])
    case.send(GOOD, BAD)
    case.run()
    case.send(b'{"id": 2}')
    events = case.run()
    assert [each for each in events if each["event"] == "lease"] == []
    assert sorted(filter(None, case.read(case.sink))) == [b'{"id":1}', b'{"id":2}']
    assert case.read(pipeline.rejected_topic) == [BAD]


RIGHTS = range(
    len(needed(Pipeline.model_validate({"pipeline": "p", "source": {"topics": ["a"]}, "sink": {"topic": "b"}})))
)


@pytest.mark.takes(15)
@pytest.mark.parametrize("number", RIGHTS)
def test_missing_right_is_named_with_the_command_that_grants_it(secured: Make, number: int) -> None:
    """The error has operation, resource and name; once granted, the pipeline continues and loses nothing."""
    case = secured()
    pipeline = case.pipeline()
    case.make_own_topics()
    rights = needed(pipeline)
    lacking = rights[number]
    case.security.allow(case.principal, [each for each in rights if each != lacking])
    case.send(GOOD, BAD)
    with pytest.raises(errors.NotAuthorized) as caught:
        case.run()
    assert f"lacking: {lacking}" in caught.value.what
    assert caught.value.then == lacking.command
    failed = [check for check in doctor(case.file())["checks"] if check["state"] == "fail"]
    reported = [(str(lacking) in check["found"], check["hint"]) for check in failed]
    assert reported == [(True, lacking.command)], failed
    case.security.allow(case.principal, [lacking])
    case.run()
    delivered = case.read(case.sink)
    assert delivered == [b'{"id":1}']
    assert case.read(pipeline.rejected_topic) == [BAD]


def test_doctor_warns_of_samples_that_the_principal_may_not_read(secured: Make) -> None:
    """The pipeline works without them, so the check does not fail; it names each right and its command."""
    case = secured()
    pipeline = case.pipeline(metrics={"samples": 3})
    case.make_own_topics()
    case.security.allow(case.principal, needed(pipeline))
    rights = for_samples(pipeline)
    assert [right.name for right in rights] == [case.sink, pipeline.rejected_topic]

    def checks() -> list[dict[str, str]]:
        return [check for check in doctor(case.file(metrics={"samples": 3}))["checks"] if check["name"] == "samples"]

    warned = checks()
    assert [(check["state"], check["hint"]) for check in warned] == [("warn", right.command) for right in rights]
    assert all(f"lacking: {right}" in check["found"] for check, right in zip(warned, rights, strict=True))
    case.security.allow(case.principal, rights)
    assert [check["state"] for check in checks()] == ["ok", "ok"]


def doctor(file: Path) -> dict[str, Any]:
    """Return the report of `tailrace doctor FILE`."""
    found = CliRunner().invoke(app, ["doctor", str(file), "--output", "json"])
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def cli(*words: str) -> tuple[int, dict[str, Any]]:
    """Return a command's exit code, and its answer or error."""
    found = CliRunner().invoke(app, [*words, "--output", "json"])
    if isinstance(found.exception, errors.TailraceError):
        return found.exception.exit_code, found.exception.as_dict()
    return found.exit_code, json.loads(found.stdout)


def test_commands_need_no_more_rights_than_the_pipeline(case: Case) -> None:
    """They run as the pipeline's principal: offsets, rejected, and verify, which also needs to read the sink."""
    pipeline, file = case.pipeline(), case.file()
    case.security.allow(case.principal, [*needed(pipeline), *to_create(pipeline)])
    case.send(GOOD, BAD)
    case.run()
    code, shown = cli("offsets", "show", str(file))
    assert (code, shown.get("error", "")) == (0, "")
    refused, why = cli("rejected", "list", str(file))
    reading = on_topic(Operation.READ, pipeline.rejected_topic)
    assert (refused, f"lacking: {reading}" in why["what"], why["next"]) == (3, True, reading.command)
    case.security.allow(case.principal, [reading, on_topic(Operation.READ, case.sink)])
    code, listed = cli("rejected", "list", str(file))
    assert (code, listed["total"]) == (0, 1)
    properties = case.folder / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in case.door.options.items()))
    code, proof = cli(
        "verify", case.source, case.sink, "-b", case.door.bootstrap_servers, "--config", str(properties),
        "--rejected", pipeline.rejected_topic,
    )  # fmt: skip
    assert (code, proof["lost"], proof["duplicated"]) == (0, 0, 0)
    writing = on_topic(Operation.WRITE, case.source)
    refused, why = cli("rejected", "replay", str(file), "--all", "--yes")
    assert (refused, f"lacking: {writing}" in why["what"], why["next"]) == (3, True, writing.command)


@pytest.mark.takes(26)
def test_wrong_password_is_reported(secured: Make) -> None:
    """The pipeline and the doctor report it without the password, and not as a broker that does not answer."""
    case = secured()
    wrong = dict(case.door.options) | {"sasl.password": "another-word"}
    case.door = Door(case.door.bootstrap_servers, wrong)
    with pytest.raises(errors.NotAuthenticated) as caught:
        case.run()
    assert "another-word" not in str(caught.value)
    assert next(each["found"] for each in doctor(case.file())["checks"] if each["name"] == "broker").startswith(
        f"the brokers at {case.door.bootstrap_servers} do not let us in"
    )


@pytest.mark.takes(13)
def test_broker_with_an_untrusted_certificate_is_refused(secured: Make, tmp_path: Path) -> None:
    """Its certificate comes from another authority than the configured one."""
    case, other = secured(), tmp_path / "other"
    other.mkdir()
    stranger = Authority(other).certificate
    case.door = Door(case.door.bootstrap_servers, dict(case.door.options) | {"ssl.ca.location": str(stranger)})
    with pytest.raises(errors.NotAuthenticated, match="certificate"):
        case.run()


def test_right_withdrawn_between_two_runs_is_noticed(secured: Make) -> None:
    """The next run fails before it delivers a record; once granted again, the pipeline continues where it was."""
    case = secured()
    pipeline = case.pipeline()
    case.security.allow(case.principal, [*needed(pipeline), *to_create(pipeline)])
    case.send(GOOD)
    case.run()
    lost = on_topic(Operation.WRITE, case.sink)
    case.security.withdraw(case.principal, [lost])
    case.send(GOOD)
    with pytest.raises(errors.NotAuthorized, match=f"lacking: {lost}"):
        case.run()
    case.security.allow(case.principal, [lost])
    case.run()
    assert case.read(case.sink) == [b'{"id":1}'] * 2


@pytest.mark.parametrize("together", [True, False], ids=["in one call", "one by one"])
def test_right_withdrawn_within_a_transaction_is_named(secured: Make, together: bool) -> None:
    """Records that the broken transaction no longer takes are refused with the right that is lacking."""
    case = secured()
    pipeline = case.pipeline()
    case.make_own_topics()
    lost = on_topic(Operation.WRITE, case.sink)
    case.security.allow(case.principal, needed(pipeline))
    task = Assignment(
        pipeline.pipeline, BatchId(0), SinkPartition(0), 1, "digest", Delivery.EXACTLY_ONCE, pipeline.ledger.topic,
        case.sink, None, "run", options=client_options(pipeline.kafka),
    )  # fmt: skip
    sink = SinkProducer(task, MarkerReader(task))
    sink.fence()
    sink.marker()
    sink.begin()
    case.security.withdraw(case.principal, [lost])
    columns = pa.array([None], pa.binary()), pa.array([GOOD], pa.binary())  # outlive the messages

    def send() -> bool:
        if together:
            sink.offer(case.sink, messages(*columns))
        else:
            sink.send(topic=case.sink, value=GOOD)
        return False

    with pytest.raises(errors.NotAuthorized, match=f"lacking: {lost}"):
        wait_until(send, "the broken transaction to refuse a record")
    sink.close()
