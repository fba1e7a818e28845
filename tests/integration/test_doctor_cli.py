"""`tailrace doctor` on a real Kafka: it confirms what works, and names each problem with a hint."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from typer.testing import CliRunner

from tailrace import jars
from tailrace.cli.main import app
from tailrace.testing import Topics
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration


class Setup:
    """A pipeline's file that tests break, and the doctor's verdict on it."""

    def __init__(self, kafka: EmbeddedKafka, topics: Topics, folder: Path) -> None:
        self.bootstrap = kafka.bootstrap_servers
        self.file = folder / "pipeline.yaml"
        self.name = f"p-{uuid4().hex[:8]}"
        self.config: dict[str, Any] = {
            "pipeline": self.name,
            "kafka": {"bootstrap.servers": self.bootstrap},
            "source": {"topics": [topics("in", partitions=3)]},
            "sink": {"topic": topics("out")},
            "ledger": {"topic": topics("ledger", partitions=4, cleanup_policy="compact")},
        }

    def run(self, *arguments: str) -> tuple[dict[str, dict[str, str]], int]:
        """Return each check by its name, and the exit code."""
        self.file.write_text(yaml.safe_dump(self.config), encoding="utf-8")
        line = ["doctor", *(arguments or (str(self.file),)), "--output", "json"]
        done = CliRunner().invoke(app, line, catch_exceptions=False)
        return {each["name"]: each for each in json.loads(done.stdout)["checks"]}, done.exit_code


@pytest.fixture
def setup(tailrace_kafka: EmbeddedKafka, tailrace_topics: Topics, tmp_path: Path) -> Setup:
    """Return a correct pipeline."""
    return Setup(tailrace_kafka, tailrace_topics, tmp_path)


def test_correct_pipeline_passes_every_check_of_kafka(setup: Setup) -> None:
    """Broker, topics, ledger, rights, transactions and retention are all checked, and nothing fails."""
    checks, code = setup.run()
    kafka = {
        "configuration", "broker", "source topic", "output topic", "message size", "ledger", "rejected topic", "group",
        "own groups", "transactions", "offsets retention",
    }  # fmt: skip
    assert kafka <= checks.keys()
    assert {checks[name]["state"] for name in kafka} == {"ok"}, checks
    assert code == 0


def test_doctor_creates_nothing(setup: Setup) -> None:
    """The rejected topic, which it reports can be created, does not exist afterwards."""
    checks, _ = setup.run()
    assert "can be created" in checks["rejected topic"]["found"]
    assert (
        f"{setup.name}.rejected"
        not in AdminClient({"bootstrap.servers": setup.bootstrap}).list_topics(timeout=10).topics
    )


def test_missing_topics_fail_with_their_names(setup: Setup) -> None:
    """Each required topic that does not exist is named."""
    setup.config["source"]["topics"] = ["no-such-source"]
    setup.config["sink"]["topic"] = "no-such-sink"
    checks, code = setup.run()
    assert (checks["source topic"]["state"], checks["output topic"]["state"], code) == ("fail", "fail", 1)
    assert "no-such-source" in checks["source topic"]["found"]
    assert checks["output topic"]["hint"].startswith(f"tailrace kafka topic create {setup.file} no-such-sink,")
    assert "message size" not in checks


def test_pattern_that_matches_nothing_is_a_warning(setup: Setup) -> None:
    """Topics may be created later."""
    setup.config["source"] = {"pattern": f"{setup.name}-.*"}
    checks, code = setup.run()
    assert (checks["source topic"]["state"], code) == ("warn", 0)


def test_ledger_with_too_few_partitions_fails(setup: Setup) -> None:
    """The hint has the required number."""
    setup.config["process"] = {"partitions": 9}
    checks, code = setup.run()
    assert (checks["ledger"]["state"], code) == ("fail", 1)
    assert "at least 9 partitions" in checks["ledger"]["hint"]


def test_ledger_with_fewer_partitions_than_the_source_passes(setup: Setup, tailrace_topics: Topics) -> None:
    """A batch without a shuffle is fitted to the ledger, as `run` does."""
    setup.config["source"]["topics"] = [tailrace_topics("wide", partitions=9)]
    setup.config["sink"]["partitions"] = 9
    checks, code = setup.run()
    assert (checks["ledger"]["state"], code) == ("ok", 0)


def test_ledger_without_compaction_fails(setup: Setup, tailrace_topics: Topics) -> None:
    """Without compaction, the broker eventually deletes plans."""
    setup.config["ledger"]["topic"] = tailrace_topics("ledger", partitions=4)
    checks, _ = setup.run()
    assert checks["ledger"]["state"] == "fail"
    assert "cleanup.policy=compact" in checks["ledger"]["hint"]


def test_doctor_warns_of_a_sink_that_sends_more_than_its_topic_accepts(setup: Setup) -> None:
    """The warning shows both limits."""
    setup.config["sink"]["options"] = {"message.max.bytes": 5_000_000}
    checks, code = setup.run()
    assert (checks["message size"]["state"], code) == ("warn", 0)
    assert "5,000,000" in checks["message size"]["found"]


def test_doctor_warns_of_a_short_retention_of_offsets(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a broker keeps markers for too short a time, the hint has the setting."""
    monkeypatch.setattr("tailrace.admin.checks._RETENTION_DAYS", 10_000)
    checks, _ = setup.run()
    assert checks["offsets retention"]["state"] == "warn"
    assert "offsets.retention.minutes=14400000" in checks["offsets retention"]["hint"]


def test_wrong_configuration_fails_and_the_machine_is_still_checked(setup: Setup) -> None:
    """The configuration's own message is the finding."""
    setup.config["sink"]["topik"] = "x"
    checks, code = setup.run()
    assert (checks["configuration"]["state"], code) == ("fail", 1)
    assert "topik" in checks["configuration"]["found"]
    assert "python" in checks


def test_unreachable_broker_fails_and_ends_the_checks_of_kafka(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer, there is nothing more to check."""
    monkeypatch.setattr("tailrace.kafka.cluster.ANSWER_LIMIT", 2.0)
    checks, code = setup.run("-b", "localhost:1")
    assert (checks["broker"]["state"], code) == ("fail", 1)
    assert "localhost:1" in checks["broker"]["found"]
    assert "transactions" not in checks


def test_doctor_can_check_a_broker_alone(setup: Setup) -> None:
    """With an address and no file, it runs the general checks."""
    checks, code = setup.run("-b", setup.bootstrap)
    assert (checks["broker"]["state"], checks["transactions"]["state"], code) == ("ok", "ok", 0)


def test_broker_that_does_not_tell_its_retention_is_a_warning(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some services answer without them; the other checks go on."""
    describe = AdminClient.describe_configs

    def nameless(client: AdminClient, asked: list[ConfigResource], **limits: Any) -> dict[Any, Future[Any]]:
        empty: Future[Any] = Future()
        empty.set_result({})
        of_brokers = asked[0].restype is ResourceType.BROKER
        return {asked[0]: empty} if of_brokers else dict(describe(client, asked, **limits))

    monkeypatch.setattr(AdminClient, "describe_configs", nameless)
    checks, code = setup.run()
    assert (checks["offsets retention"]["state"], code) == ("warn", 0)
    assert "do not tell offsets.retention.minutes" in checks["offsets retention"]["found"]


def test_what_cannot_start_does_not_pass(setup: Setup) -> None:
    """A function or a schema that does not load, and a topic that rows may name and that does not exist."""
    setup.config["process"] = {"function": "nowhere.py:nothing"}
    setup.config["source"] |= {"format": "avro", "schema": "missing.avsc"}
    setup.config["sink"]["topics"] = ["no-such-topic"]
    checks, code = setup.run()
    assert code == 1
    assert "nowhere.py does not exist" in checks["function"]["found"]
    assert "missing.avsc" in checks["source schema"]["found"]
    assert checks["output topic"]["found"] == "no-such-topic does not exist"
    assert {checks[name]["state"] for name in ("function", "source schema", "output topic")} == {"fail"}


def test_function_and_schemas_are_loaded_without_spark(setup: Setup) -> None:
    """A function that does not take its arguments is found, too."""
    (setup.file.parent / "doctored.py").write_text("def doctored(frame, currency):\n    return frame\n")
    setup.config["process"] = {"function": "doctored.py:doctored", "arguments": {"currency": "EUR"}}
    setup.config["source"] |= {"format": "json", "schema": "id LONG, item STRING"}
    checks, code = setup.run()
    assert (checks["function"]["state"], checks["source schema"]["found"], code) == ("ok", "json with 2 fields", 0)
    assert checks["function"]["found"] == "doctored.py:doctored loads; --plan also tries it in Spark"
    setup.config["process"]["arguments"] = {}
    checks, code = setup.run()
    assert (
        "does not take one DataFrame and process.arguments: missing a required argument: 'currency'"
        in (checks["function"]["found"])
    )


def test_jars_that_are_fetched_when_they_are_needed_are_no_failure(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an installation none are there; a set that is not complete is a failure."""
    [one, *_] = jars.ensure("spark")
    folder = tmp_path / "jars"
    monkeypatch.setenv("TAILRACE_JARS", str(folder))
    checks, code = setup.run()
    assert (checks["spark jars"]["state"], checks["kafka jars"]["state"], code) == ("ok", "ok", 0)
    assert "a pipeline with state would fetch them" in checks["spark jars"]["found"]
    folder.mkdir()
    shutil.copy(one, folder)
    checks, code = setup.run()
    assert (checks["spark jars"]["state"], code) == ("fail", 1)


def test_address_without_a_port_is_no_address(setup: Setup) -> None:
    """librdkafka would add a port of its own, and Java's client refuse it."""
    setup.config["kafka"]["bootstrap.servers"] = "localhost"
    checks, code = setup.run()
    assert "'localhost' is not host:port" in checks["configuration"]["found"]
    assert code == 1
