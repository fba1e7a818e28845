"""The rules of the schema: what `Pipeline(...)` accepts, what it refuses, and what it never shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tailrace.config import (
    CONNECTION_OPTIONS,
    LEDGER_TOPIC,
    SECRET_OPTION,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Batch,
    Delivery,
    Kafka,
    Ledger,
    Pipeline,
    Process,
    Sink,
    Source,
    redact,
)
from tailrace.errors import ConfigInvalid


def pipeline(**changes: Any) -> Pipeline:
    """Return a complete pipeline with some of its keys changed."""
    complete: dict[str, Any] = {"pipeline": "copy", "source": {"topics": ["orders"]}, "sink": {"topic": "copies"}}
    return Pipeline.model_validate({**complete, **changes})


class TestNames:
    """The pipeline's name becomes part of ids and groups."""

    @pytest.mark.parametrize("name", ["a", "tweets", "rich-events-2", "0", "a" * 100])
    def test_good_names_are_accepted(self, name: str) -> None:
        """A name has lower-case letters, digits and dashes."""
        assert pipeline(pipeline=name).pipeline == name

    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a_b", "a b", "ä", "a" * 101, "a\n"])
    def test_bad_names_are_refused(self, name: str) -> None:
        """A dot, for one, would let one pipeline's ids begin with another's."""
        with pytest.raises(ConfigInvalid):
            pipeline(pipeline=name)

    def test_rejected_topic_derives_from_the_name(self) -> None:
        """It need not be configured."""
        assert pipeline().rejected_topic == "copy.rejected"
        assert pipeline(rejected="elsewhere").rejected_topic == "elsewhere"


class TestTopics:
    """No pipeline reads what it writes."""

    def test_source_that_is_the_sink_is_refused(self) -> None:
        """It would read its own output forever."""
        with pytest.raises(ConfigInvalid, match="source and sink are both 'orders'"):
            pipeline(sink={"topic": "orders"})

    @pytest.mark.parametrize("topic", ["copy.rejected", LEDGER_TOPIC])
    def test_own_topics_are_refused_as_source(self, topic: str) -> None:
        """The rejected topic and the ledger are written by the pipeline."""
        with pytest.raises(ConfigInvalid, match="the pipeline writes to"):
            pipeline(source={"topics": ["orders", topic]})

    @pytest.mark.parametrize("changes", [{"sink": {"topic": LEDGER_TOPIC}}, {"rejected": LEDGER_TOPIC}])
    def test_ledger_takes_no_records(self, changes: dict[str, Any]) -> None:
        """It holds plans and markers only."""
        with pytest.raises(ConfigInvalid, match="is the ledger"):
            pipeline(**changes)

    @pytest.mark.parametrize("source", [{}, {"topics": []}, {"topics": ["a"], "pattern": "b.*"}])
    def test_topics_or_a_pattern_is_needed_and_not_both(self, source: dict[str, Any]) -> None:
        """One of them says what is read."""
        with pytest.raises(ConfigInvalid, match="either `topics` or `pattern`"):
            Source.model_validate(source)

    def test_pattern_alone_is_enough(self) -> None:
        """A pattern replaces topics."""
        assert Source(pattern="orders-.*").topics == []

    def test_pattern_that_does_not_parse_is_refused(self) -> None:
        """The reason is the parser's."""
        with pytest.raises(ConfigInvalid, match="not a regular expression"):
            Source(pattern="orders-(")


class TestFormats:
    """A format and its schema go together."""

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ({"format": "json"}, "format json needs a `schema`"),
            ({"format": "avro"}, "format avro needs a `schema`"),
            ({"format": "raw", "schema": "a long"}, "format raw takes no `schema`"),
            ({"format": "json", "schema": "a long", "registry": {"url": "http://r"}}, "goes with format avro"),
        ],
    )
    def test_source_contradictions_are_refused(self, source: dict[str, Any], words: str) -> None:
        """Keys that the format needs or cannot use."""
        with pytest.raises(ConfigInvalid, match=words):
            Source.model_validate({"topics": ["a"], **source})

    @pytest.mark.parametrize(
        ("sink", "words"),
        [
            ({"format": "avro"}, "format avro needs a `schema`"),
            ({"format": "json", "schema": "a.avsc"}, "go with format avro"),
            ({"format": "raw", "registry": {"url": "http://r"}}, "go with format avro"),
        ],
    )
    def test_sink_contradictions_are_refused(self, sink: dict[str, Any], words: str) -> None:
        """Keys that the format needs or cannot use."""
        with pytest.raises(ConfigInvalid, match=words):
            Sink.model_validate(sink)

    def test_sink_without_a_topic_is_accepted(self) -> None:
        """The function may return a column instead."""
        assert Sink().topic is None


class TestProcess:
    """A pipeline has one function, on DataFrames or on Arrow batches."""

    def test_function_on_arrow_batches_takes_arguments(self) -> None:
        """Both kinds of function take arguments."""
        assert pipeline(process={"arrow": "job.py:f", "arguments": {"a": 1}}).process.arrow == "job.py:f"

    @pytest.mark.parametrize(
        ("process", "words"),
        [
            ({"function": "job.py:f"}, "a pipeline takes only one of them"),
            ({"partitions": 2}, "`partitions` is a shuffle"),
        ],
    )
    def test_function_on_arrow_batches_excludes_what_needs_spark(self, process: dict[str, Any], words: str) -> None:
        """A function on DataFrames, and a shuffle."""
        with pytest.raises(ConfigInvalid, match=words):
            pipeline(process={"arrow": "job.py:f"} | process)


class TestDelivery:
    """Options may not contradict the delivery guarantee."""

    @pytest.mark.parametrize(
        ("delivery", "options", "words"),
        [
            ("exactly-once", {"acks": "1"}, "acks=1 contradicts delivery exactly-once"),
            ("exactly-once", {"acks": 0}, "acks=0 contradicts delivery exactly-once"),
            ("exactly-once", {"acks": "most"}, "acks must be all, 1 or 0, not 'most'"),
            ("exactly-once", {"enable.idempotence": False}, "contradicts delivery exactly-once"),
            ("exactly-once", {"retries": 0}, "retries=0 contradicts delivery exactly-once, which needs at least 1"),
            ("exactly-once", {"max.in.flight.requests.per.connection": 6}, "which needs at most 5"),
            ("exactly-once", {"delivery.timeout.ms": 300000}, "at most 120000, the value of transaction.timeout.ms"),
            ("exactly-once", {"message.timeout.ms": 9001, "transaction.timeout.ms": 9000}, "at most 9000"),
            ("at-least-once", {"acks": "0"}, "contradicts delivery at-least-once"),
            ("at-least-once", {"retries": 0}, "retries=0 needs enable.idempotence=false"),
            ("at-least-once", {"max.in.flight.requests.per.connection": 6}, "needs enable.idempotence=false"),
            ("at-least-once", {"acks": "1", "enable.idempotence": True}, "needs acks=all"),
            ("at-least-once", {"transaction.timeout.ms": 1}, "goes with delivery exactly-once"),
        ],
    )
    def test_contradictions_are_refused(self, delivery: str, options: dict[str, Any], words: str) -> None:
        """They are refused before anything runs, with the reason."""
        with pytest.raises(ConfigInvalid, match=words):
            Sink.model_validate({"delivery": delivery, "options": options})

    @pytest.mark.parametrize(
        ("delivery", "options"),
        [
            ("exactly-once", {"acks": "all"}),
            ("exactly-once", {"acks": -1, "enable.idempotence": True}),
            ("exactly-once", {"transaction.timeout.ms": 60000}),
            ("exactly-once", {"delivery.timeout.ms": 300000, "transaction.timeout.ms": 300000}),
            ("exactly-once", {"message.timeout.ms": 0, "retries": 1, "max.in.flight.requests.per.connection": 5}),
            ("at-least-once", {"acks": 1, "retries": 0, "max.in.flight.requests.per.connection": 10}),
            ("at-least-once", {"enable.idempotence": False, "retries": 0, "delivery.timeout.ms": 600000}),
        ],
    )
    def test_options_that_agree_are_taken(self, delivery: str, options: dict[str, Any]) -> None:
        """The same options, with values that do not contradict the guarantee."""
        assert Sink.model_validate({"delivery": delivery, "options": options}).options.keys() == options.keys()

    def test_exactly_once_is_the_default(self) -> None:
        """A weaker guarantee must be chosen explicitly."""
        assert Sink().delivery is Delivery.EXACTLY_ONCE


class TestOptions:
    """Kafka's options, from a list for each use."""

    @pytest.mark.parametrize("name", ["transactional.id", "group.id", "bootstrap.servers", "plugin.library.paths", ""])
    def test_options_that_are_not_listed_are_refused_everywhere(self, name: str) -> None:
        """Options that Tailrace sets itself, and any that are not known."""
        for section, more in ((Kafka, {}), (Source, {"topics": ["a"]}), (Sink, {})):
            with pytest.raises(ConfigInvalid, match="unknown Kafka option"):
                section.model_validate({**more, "options": {name: "x"}})

    @pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM", "plain", "hunter2"])
    def test_sasl_mechanism_that_the_clients_lack_is_refused(self, mechanism: str) -> None:
        """With OAUTHBEARER, librdkafka would report no more than that no broker answers."""
        options = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
        with pytest.raises(ConfigInvalid, match=r"must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; OAUTH") as raised:
            Kafka(options=options)
        assert "hunter2" not in str(raised.value)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    @pytest.mark.parametrize("protocol", ["SASL_SSL", "sasl_plaintext"])
    def test_sasl_mechanism_that_both_clients_have_is_taken(self, mechanism: str, protocol: str) -> None:
        """librdkafka reads the protocol in either case."""
        options = {"security.protocol": protocol, "sasl.mechanism": mechanism}
        assert Kafka(options=options).options == options

    def test_unknown_security_protocol_is_refused(self) -> None:
        """The message names those that exist."""
        with pytest.raises(ConfigInvalid, match="must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"):
            Kafka(options={"security.protocol": "TLS"})

    def test_all_unknown_options_are_named_at_once(self) -> None:
        """The message does not stop at the first one."""
        with pytest.raises(ConfigInvalid, match=r"options\.aa: unknown Kafka option[^\n]*\n  options\.bb: unknown"):
            Kafka(options={"aa": "1", "bb": "2"})

    @pytest.mark.parametrize(("given", "text"), [(True, "true"), (False, "false"), (5242880, "5242880"), (1.5, "1.5")])
    def test_values_become_text(self, given: object, text: str) -> None:
        """YAML has numbers where Kafka wants text."""
        assert Sink.model_validate({"options": {"linger.ms": given}}).options == {"linger.ms": text}

    @pytest.mark.parametrize("value", [None, [], {}])
    def test_values_that_are_not_text_are_refused(self, value: object) -> None:
        """Nothing, lists and mappings mean nothing to Kafka."""
        with pytest.raises(ConfigInvalid):
            Sink.model_validate({"options": {"linger.ms": value}})

    def test_settings_of_spark_begin_with_spark(self) -> None:
        """A typo would otherwise be a setting that nothing reads."""
        assert pipeline(spark={"spark.executor.cores": 2}).spark == {"spark.executor.cores": "2"}
        with pytest.raises(ConfigInvalid, match=r"'executor.cores' is not a Spark setting"):
            pipeline(spark={"executor.cores": 2})


class TestNumbers:
    """Counts and times."""

    @pytest.mark.parametrize(
        ("section", "key", "value"),
        [
            (Batch, "max_records", 0),
            (Batch, "max_records", True),
            (Batch, "trigger", -1),
            (Batch, "trigger", float("inf")),
            (Batch, "trigger", False),
            (Ledger, "partitions", 0),
            (Ledger, "replication", -2),
            (Process, "partitions", 10_001),
            (Process, "partitions", True),
            (Sink, "partitions", 0),
        ],
    )
    def test_numbers_out_of_range_are_refused(self, section: type[Any], key: str, value: object) -> None:
        """Each has a minimum, some a maximum, and true is not a number."""
        with pytest.raises(ConfigInvalid):
            section.model_validate({key: value})


class TestSchema:
    """Rules for every section."""

    def test_unknown_keys_are_refused(self) -> None:
        """This holds for each section and at the top."""
        with pytest.raises(ConfigInvalid):
            pipeline(sourc={})
        with pytest.raises(ConfigInvalid):
            Sink.model_validate({"topc": "a"})

    def test_configuration_does_not_change_after_validation(self) -> None:
        """A valid configuration stays valid."""
        with pytest.raises(ValidationError):
            pipeline().sink.topic = "orders"  # type: ignore[misc]

    def test_configuration_survives_its_own_dump(self) -> None:
        """It travels to other processes as JSON."""
        made = pipeline(process={"validate": {"a": "b"}}, kafka={"options": {"ssl.ca.location": "x"}})
        assert Pipeline.model_validate_json(made.model_dump_json(by_alias=True)) == made


SECRET_NAMES = sorted(
    {name for name in CONNECTION_OPTIONS | SOURCE_OPTIONS | SINK_OPTIONS if SECRET_OPTION.search(name)}
    | {"SASL.PASSWORD", "basic.auth.user.info", "bearer.auth.token", "sasl.jaas.config", "oauth.client.secret"}
)


class TestSecrets:
    """Values that may be passwords are not shown."""

    @pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.certificate.pem"])
    def test_known_secrets_are_recognised(self, name: str) -> None:
        """Secrets in the list of options."""
        assert redact({name: "x"}) == {name: "***"}

    def test_other_options_stay_readable(self) -> None:
        """Redacting everything would help nobody."""
        options = {"ssl.ca.location": "/ca.pem", "sasl.username": "u", "security.protocol": "SASL_SSL"}
        assert redact(options) == options

    @given(
        prefix=st.text(alphabet="abz.", max_size=8),
        name=st.sampled_from(SECRET_NAMES),
        suffix=st.text(alphabet="abz.", max_size=8),
        secret=st.text(alphabet="0123456789#", min_size=4, max_size=40),
        others=st.dictionaries(st.sampled_from(["acks", "linger.ms", "client.rack"]), st.sampled_from(["1", "a"])),
    )
    def test_redact_never_leaks(self, prefix: str, name: str, suffix: str, secret: str, others: dict[str, str]) -> None:
        """Whatever surrounds the word that marks a secret, and whatever the secret is."""
        shown = redact({**others, prefix + name + suffix: secret})
        assert secret not in repr(shown)
        assert shown.keys() == {*others, prefix + name + suffix}
        assert {key: shown[key] for key in others} == others

    def test_repr_of_a_pipeline_contains_no_password(self) -> None:
        """It ends up in tracebacks and logs."""
        made = pipeline(
            kafka={"options": {"sasl.password": "hunter2"}},
            spark={"spark.hadoop.fs.s3a.secret.key": "hunter2"},
            sink={
                "format": "avro",
                "schema": "a",
                "registry": {"url": "u", "options": {"basic.auth.user.info": "hunter2"}},
            },
        )
        assert "hunter2" not in repr(made)
        assert "hunter2" not in str(made)
