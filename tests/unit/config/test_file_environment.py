"""Environment variables that override a configuration file, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.configs import SMALLEST, loaded, problems
from tailrace.config import Delivery, Format, Rule, Severity
from tailrace.config.file import load, variables
from tailrace.config.file.environment import KUBERNETES


@pytest.mark.usefixtures("folder")
class TestEnvironment:
    """Variables override the file."""

    @pytest.mark.parametrize(
        ("name", "value", "path", "expected"),
        [
            ("TAILRACE_PIPELINE", "other", "pipeline", "other"),
            ("TAILRACE_KAFKA__BOOTSTRAP_SERVERS", "a:1,b:2", "kafka.bootstrap_servers", "a:1,b:2"),
            ("TAILRACE_SINK__TOPIC", "123", "sink.topic", "123"),
            ("TAILRACE_SINK__TOPIC", "'quoted'", "sink.topic", "quoted"),
            ("TAILRACE_SINK__TOPIC", "", "sink.topic", None),
            ("TAILRACE_SOURCE__TOPICS", "[a, b]", "source.topics", ["a", "b"]),
            ("TAILRACE_BATCH__MAX_RECORDS", "50", "batch.max_records", 50),
            ("TAILRACE_BATCH__TARGET", "500ms", "batch.target", 0.5),
            ("TAILRACE_BATCH__MAX_BYTES", "64MB", "batch.max_bytes", 64_000_000),
            ("TAILRACE_BATCH__TRIGGER", "1.5", "batch.trigger", 1.5),
            ("TAILRACE_SINK__DELIVERY", "at-least-once", "sink.delivery", Delivery.AT_LEAST_ONCE),
            ("TAILRACE_SINK__FORMAT", "raw", "sink.format", Format.RAW),
            ("TAILRACE_KAFKA__OPTIONS__SASL_PASSWORD", "[*x", "kafka.options", {"sasl.password": "[*x"}),
            ("TAILRACE_KAFKA__OPTIONS__SASL_PASSWORD", "null", "kafka.options", {"sasl.password": "null"}),
            ("TAILRACE_SPARK__SPARK_EXECUTOR_MEMORY", "1g", "spark", {"spark.executor.memory": "1g"}),
            ("TAILRACE_SPARK__spark_a_someThing", "1", "spark", {"spark.a.someThing": "1"}),
            ("TAILRACE_PROCESS__ARGUMENTS__MIN_COUNT", "5", "process.arguments", {"min_count": 5}),
            ("TAILRACE_PROCESS__VALIDATE__WHOLE", "a: b", "process.validate_", {"whole": Rule(condition="a: b")}),
        ],
    )
    def test_variable_sets_its_key(self, name: str, value: str, path: str, expected: object) -> None:
        """A key's path names its variable; in maps of options, `_` stands for a dot."""
        found: object = loaded(SMALLEST, {name: value}).pipeline
        for part in path.split("."):
            found = getattr(found, part)
        assert found == expected

    def test_variable_sets_a_key_of_a_rule(self) -> None:
        """The rule's name has `_` for any other sign; a rule that is only a condition gets a severity."""
        text = SMALLEST + (
            "process: {validate: {known-price: {condition: x, severity: stop, ratio: 0.1}, is there: y, other: z}}\n"
        )
        found = loaded(
            text,
            {
                "TAILRACE_PROCESS__VALIDATE__KNOWN_PRICE__RATIO": "1",
                "TAILRACE_PROCESS__VALIDATE__IS_THERE__SEVERITY": "warn",
            },
        ).pipeline.process.validate_
        assert found == {
            "known-price": Rule(condition="x", severity=Severity.STOP, ratio=1),
            "is there": Rule(condition="y", severity=Severity.WARN),
            "other": Rule(condition="z"),
        }

    def test_variable_wins_over_the_file(self) -> None:
        """A wrong value in the file does not matter if a variable replaces it."""
        result = loaded(SMALLEST + "batch: {max_records: many}\n", {"TAILRACE_BATCH__MAX_RECORDS": "7"})
        assert result.pipeline.batch.max_records == 7

    def test_variable_wins_over_the_other_spelling(self) -> None:
        """The file may use Python's name of the key."""
        text = SMALLEST + "kafka: {bootstrap_servers: 'file:1'}\n"
        result = loaded(text, {"TAILRACE_KAFKA__BOOTSTRAP_SERVERS": "env:1"})
        assert result.pipeline.kafka.bootstrap_servers == "env:1"

    def test_variable_finds_the_capitals_that_the_file_has(self) -> None:
        """A Spark setting in the file is overridden, not duplicated."""
        text = SMALLEST + "spark: {spark.sql.shufflePartitions: 1}\n"
        result = loaded(text, {"TAILRACE_SPARK__SPARK_SQL_SHUFFLEPARTITIONS": "2"})
        assert result.pipeline.spark == {"spark.sql.shufflePartitions": "2"}

    def test_problem_of_a_variable_has_its_name_as_place(self) -> None:
        """The file is right; the variable needs fixing."""
        assert problems(SMALLEST, {"TAILRACE_BATCH__MAX_RECORDS": "many"}) == [
            "TAILRACE_BATCH__MAX_RECORDS: batch.max_records: 'many' is not a whole number"
        ]

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("TAILRACE_KAFKA_BOOTSTRAP_SERVERS", "did you mean TAILRACE_KAFKA__BOOTSTRAP_SERVERS?"),
            ("TAILRACE_SINK__TOPC", "did you mean TAILRACE_SINK__TOPIC?"),
            ("TAILRACE_SINK__TOPIC__NAME", "did you mean TAILRACE_SINK__TOPIC?"),
            ("TAILRACE_ZZZZZZZZZZZ", "with __ between"),
            ("TAILRACE_", "with __ between"),
            ("TAILRACE_SINK", "sink has keys of its own; set those, as TAILRACE_SINK__…"),
            ("TAILRACE_SINK__OPTIONS", "sink.options has keys of its own"),
            ("TAILRACE_KAFKA__OPTIONS__SASL_PASSWRD", "unknown Kafka option; did you mean 'sasl.password'?"),
        ],
    )
    def test_variable_that_names_no_key_is_refused(self, name: str, words: str) -> None:
        """A typo in a variable's name would otherwise be silently ignored."""
        (problem,) = problems(SMALLEST, {name: "x"})
        assert problem.startswith(f"{name}: ")
        assert words in problem

    @pytest.mark.parametrize(
        "name",
        [
            "TAILRACE_JARS",
            "TAILRACE_HOME",
            "TAILRACE_LOG",
            "TAILRACE_SERVICE_HOST",
            "TAILRACE_OPERATOR_SERVICE_PORT_METRICS",
            "TAILRACE_PORT",
            "TAILRACE_PORT_9090_TCP_ADDR",
            "OTHER_TAILRACE_SINK",
        ],
    )
    def test_unrelated_variables_are_ignored(self, name: str) -> None:
        """Reserved names, and those that Kubernetes sets for a service called tailrace."""
        assert loaded(SMALLEST, {name: "x"}) == loaded(SMALLEST)

    def test_no_variable_of_a_key_looks_like_one_of_kubernetes(self) -> None:
        """Otherwise that key could not be set."""
        assert [name for name in variables() if KUBERNETES.fullmatch(name)] == []

    def test_process_environment_is_the_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If no environment is given, this process's own is used."""
        monkeypatch.setenv("TAILRACE_SINK__TOPIC", "from-outside")
        Path("file.yaml").write_text(SMALLEST, encoding="utf-8")
        assert load(Path("file.yaml")).pipeline.sink.topic == "from-outside"

    def test_missing_key_of_a_section_begun_by_a_variable_names_the_variable(self) -> None:
        """The section is not in the file, so the message points to the variable."""
        (problem,) = problems(SMALLEST, {"TAILRACE_SINK__REGISTRY__OPTIONS__TIMEOUT": "x"})
        assert problem.startswith("TAILRACE_SINK__REGISTRY__OPTIONS__TIMEOUT: sink.registry.url: missing")
