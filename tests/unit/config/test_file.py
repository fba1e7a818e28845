"""`load`: valid files and environments, and the messages for invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.configs import SECRET, SMALLEST, loaded, problems
from tailrace.config import Batch, Pipeline, Sink, Source
from tailrace.config.file import load
from tailrace.errors import ConfigInvalid


@pytest.mark.usefixtures("folder")
class TestFile:
    """Valid files, and files that are not a configuration."""

    def test_smallest_file_gets_the_defaults(self, folder: Path) -> None:
        """A name, topics and a sink are enough."""
        result = loaded(SMALLEST)
        assert result.pipeline == Pipeline(pipeline="copy", source={"topics": ["orders"]}, sink={"topic": "copies"})
        assert result.folder == folder.resolve()
        assert result.path == Path("file.yaml")

    def test_dotted_keys_and_python_names_mean_the_same(self) -> None:
        """`auto.offset.reset` is Kafka's spelling and `auto_offset_reset` is Python's."""
        one = loaded(SMALLEST.replace("topics:", "auto.offset.reset: latest\n  topics:"))
        other = loaded(SMALLEST.replace("topics:", "auto_offset_reset: latest\n  topics:"))
        assert one == other
        assert one.pipeline.source.auto_offset_reset == "latest"

    def test_byte_order_mark_is_not_part_of_the_first_key(self) -> None:
        """Editors on Windows begin a file with one."""
        Path("file.yaml").write_bytes(b"\xef\xbb\xbf" + SMALLEST.encode())
        assert load(Path("file.yaml"), {}).pipeline.pipeline == "copy"

    def test_missing_file_is_named(self) -> None:
        """The message names the missing file."""
        with pytest.raises(ConfigInvalid, match=r"none\.yaml: there is no such file"):
            load(Path("none.yaml"), {})

    def test_folder_is_not_a_file(self, folder: Path) -> None:
        """The message says that the path is a folder."""
        with pytest.raises(ConfigInvalid, match="this is a folder"):
            load(folder, {})

    @pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
    def test_file_without_content_is_refused(self, text: str) -> None:
        """An empty file is no configuration."""
        (problem,) = problems(text)
        assert "empty" in problem or "not a mapping" in problem

    def test_list_is_not_a_configuration(self) -> None:
        """The root must be a mapping."""
        assert problems("- a\n- b\n") == ["file.yaml:1: not a mapping; a configuration is `key: value` lines"]

    def test_text_that_is_not_utf8_is_refused_with_its_line(self) -> None:
        """It is the line of the first wrong byte."""
        Path("file.yaml").write_bytes(b"pipeline: copy\nrejected: \xe4\n")
        with pytest.raises(ConfigInvalid, match=r"file\.yaml:2: not UTF-8"):
            load(Path("file.yaml"), {})

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            ("pipeline: copy\nsource: [a\nsink: b\n", 3, "expected ',' or ']'"),
            ("pipeline: copy\n\tsource: a\n", 2, "cannot start any token"),
            ("pipeline: copy\nrejected: *name\n", 2, "must be in quotes"),
            ("pipeline: copy\n---\npipeline: two\n", 2, "single document"),
            ("pipeline: copy\nrejected: a\x01b\n", 2, "#x0001"),
        ],
    )
    def test_syntax_errors_have_their_line(self, text: str, line: int, words: str) -> None:
        """The message has PyYAML's reason and the line."""
        (problem,) = problems(text)
        assert problem.startswith(f"file.yaml:{line}: not YAML")
        assert words in problem

    def test_message_says_what_was_kept_and_what_to_do_next(self) -> None:
        """The error has all of its parts."""
        with pytest.raises(ConfigInvalid) as caught:
            loaded("a: 1\n")
        assert "nothing was read from or written to Kafka" in str(caught.value)
        assert "next: correct file.yaml" in str(caught.value)


@pytest.mark.usefixtures("folder")
class TestProblems:
    """Messages for values that do not fit the schema."""

    def test_unknown_key_names_the_nearest(self) -> None:
        """For a typo the message suggests the intended key, and does not also call that key missing."""
        assert problems(SMALLEST.replace("  topics: [orders]", "  topic: orders")) == [
            "file.yaml:3: source.topic: unknown key; did you mean 'topics'?"
        ]

    @pytest.mark.parametrize("wrong", ["auto.offset.rest", "auto_offset_rest"])
    def test_nearest_key_is_an_alias_too(self, wrong: str) -> None:
        """A key with dots is found from either spelling, and suggested with dots."""
        (problem,) = problems(SMALLEST.replace("topics:", f"{wrong}: latest\n  topics:"))
        assert problem == f"file.yaml:3: source.{wrong}: unknown key; did you mean 'auto.offset.reset'?"

    def test_unknown_key_without_a_near_one_lists_the_keys(self) -> None:
        """If no key is close, the message lists the keys that exist."""
        (problem,) = problems(SMALLEST + "batch: {zzz: 1}\n")
        known = ", ".join(Batch.model_fields)
        assert problem == f"file.yaml:6: batch.zzz: unknown key; the known ones are: {known}"

    def test_key_written_twice_is_refused(self) -> None:
        """YAML would silently let the last one win."""
        (problem,) = problems(SMALLEST + "  topic: others\n")
        assert problem == "file.yaml:6: sink.topic: duplicate key; line 5 sets it already"

    def test_key_written_in_both_spellings_is_refused(self) -> None:
        """Python's name and Kafka's name the same key."""
        (problem,) = problems(SMALLEST + "kafka:\n  bootstrap.servers: a:1\n  bootstrap_servers: b:1\n")
        assert problem == "file.yaml:8: kafka.bootstrap.servers: duplicate key; line 7 sets it already"

    def test_missing_section_is_named(self) -> None:
        """A truncated file gets a message about what it lacks."""
        assert problems("pipeline: copy\nsource: {topics: [a]}\n") == [
            "file.yaml: sink: missing, and there is no default"
        ]

    def test_missing_key_has_the_line_of_its_section(self) -> None:
        """A missing key has no line of its own, so its section's is given."""
        (problem,) = problems(SMALLEST.replace("topics:", "format: avro\n  schema: a.avsc\n  registry: {}\n  topics:"))
        assert problem == "file.yaml:5: source.registry.url: missing, and there is no default"

    @pytest.mark.parametrize(
        ("section", "key", "value", "words"),
        [
            ("batch", "max_records", "many", "'many' is not a whole number"),
            ("batch", "max_records", "1.5", "1.5 is not a whole number"),
            ("batch", "max_records", "yes", "takes a number, not true or false"),
            ("batch", "max_records", "0", "0 is too small; the minimum is 1"),
            ("batch", "max_records", "[1]", "a list is not a whole number"),
            ("batch", "trigger", "soon", "'soon' is not a number"),
            ("batch", "target", "soon", "'soon' is not a time; write 1s, 500ms or 2m, or a number of seconds"),
            ("batch", "target", "-1s", "'-1s' is not a time; write 1s, 500ms or 2m, or a number of seconds"),
            ("batch", "target", "-1", "-1 is too small; the minimum is 0.0"),
            ("batch", "target", "yes", "takes a number, not true or false"),
            ("batch", "max_bytes", "64M", "'64M' is not a size; write 500kB, 64MB or 1GiB, or a number of bytes"),
            ("batch", "max_bytes", "0MB", "'0MB' is too small; the minimum is 1"),
            ("batch", "trigger", ".inf", ".inf is not a finite number"),
            ("process", "partitions", "20000", "20000 is too large; the maximum is 10000"),
            ("process", "function", "5", "takes text; put the value in quotes"),
            ("process", "function", "[a]", "takes text, not a list"),
            ("process", "arguments", "5", "takes keys with values, not a single value"),
            ("process", "validate", "", "has no keys; remove it, or add some"),
            ("ledger", "topic", "", "has no value; it takes text"),
            ("ledger", "topic", "''", "is empty"),
            ("ledger", "topic", "!x", "has a YAML tag (!…); put a value that begins with ! in quotes"),
        ],
    )
    def test_wrong_value_has_a_plain_message(self, section: str, key: str, value: str, words: str) -> None:
        """Each kind of mistake has its own sentence."""
        assert problems(f"{SMALLEST}{section}:\n  {key}: {value}\n") == [f"file.yaml:7: {section}.{key}: {words}"]

    def test_choice_names_the_choices_and_the_nearest(self) -> None:
        """The message lists the valid choices."""
        (problem,) = problems(SMALLEST.replace("topics:", "on_data_loss: rest\n  topics:"))
        assert problem == "file.yaml:3: source.on_data_loss: 'rest' is not one of stop, reset; did you mean 'reset'?"

    def test_format_names_the_formats_and_that_it_may_be_a_class(self) -> None:
        """A class of the user's may be named too."""
        (problem,) = problems(SMALLEST.replace("topics:", "format: jsn\n  topics:"))
        known = "raw, json, avro or package.module:Class"
        assert problem == f"file.yaml:3: source.format: 'jsn' is not {known}; did you mean 'json'?"

    def test_list_item_has_its_own_line(self) -> None:
        """The error is in the second topic, not in the list."""
        (problem,) = problems(SMALLEST.replace("[orders]", "\n    - a\n    - 5\n"))
        assert problem == "file.yaml:5: source.topics[1]: takes text; put the value in quotes"

    def test_text_in_place_of_a_list_is_refused(self) -> None:
        """A single topic must be a list of one."""
        assert problems(SMALLEST.replace("[orders]", "orders")) == [
            "file.yaml:3: source.topics: takes a list, not text"
        ]

    def test_section_without_keys_is_refused(self) -> None:
        """A section whose keys are all commented out."""
        assert problems(SMALLEST + "process:\n") == ["file.yaml:6: process: has no keys; remove it, or add some"]

    def test_unknown_kafka_option_names_the_nearest(self) -> None:
        """Unknown options are checked against the list of allowed ones."""
        (problem,) = problems(SMALLEST + "  options:\n    linger.msec: 5\n")
        assert problem == "file.yaml:7: sink.options.linger.msec: unknown Kafka option; did you mean 'linger.ms'?"

    def test_contradiction_has_the_line_of_the_option(self) -> None:
        """The rule belongs to the sink, but the line is that of the option that breaks it."""
        (problem,) = problems(SMALLEST + "  options:\n    linger.ms: 5\n    acks: 1\n")
        assert problem.startswith("file.yaml:8: sink: acks=1 contradicts delivery exactly-once")

    def test_all_problems_come_at_once_in_the_order_of_the_file(self) -> None:
        """All mistakes can be fixed in one go."""
        text = (
            "pipeline: Copy\nsource:\n  topic: a\n  partitions: x\nsink:\n  options:\n    zz: 1\n    acks: []\n"
            "kafka:\n  options: {sasl.pasword: a}\nprocess:\n  function: a\n  function: b\n"
        )
        found = problems(text, {"TAILRACE_BATCH__MAX_RECORDS": "none"})
        places = [line.split(": ")[0] for line in found]
        assert places == [f"file.yaml:{line}" for line in (1, 3, 4, 7, 8, 10, 13)] + ["TAILRACE_BATCH__MAX_RECORDS"]

    def test_merge_keys_are_refused(self) -> None:
        """A merged mapping has no line of its own, so it is not accepted."""
        (problem,) = problems(SMALLEST + "batch: &b {trigger: 1}\nledger:\n  <<: *b\n")
        assert problem == "file.yaml:8: ledger: the merge key << is not supported; write the keys out"

    def test_alias_that_contains_itself_is_refused(self) -> None:
        """A file cannot make the loader run forever."""
        (problem,) = problems(SMALLEST + "process:\n  arguments: &a {inner: *a}\n")
        assert problem.startswith("file.yaml:7: process.arguments.inner: an alias contains itself")

    def test_exponential_aliases_are_refused(self) -> None:
        """Nine levels of ten aliases would be a billion values."""
        levels = "\n".join(f"    l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10))
        found = problems(f"{SMALLEST}process:\n  arguments:\n    l0: &l0 x\n{levels}\n")
        assert "more than 100000 values after aliases are expanded" in found[0]

    def test_deep_nesting_is_refused(self) -> None:
        """No configuration is nested like this, and Python's recursion error is no help."""
        found = problems(f"{SMALLEST}process:\n  arguments:\n    a: {'[' * 60}{']' * 60}\n")
        assert "nested in more than 50 levels" in found[0]
        found = problems(f"{SMALLEST}process:\n  arguments:\n    a: {'[' * 2000}{']' * 2000}\n")
        assert "nested too deeply" in found[0]


@pytest.mark.usefixtures("folder")
class TestOptions:
    """Values of Kafka options are text, exactly as written."""

    @pytest.mark.parametrize("text", ["0123", "1:30", "1_000", "5242880", "2024-01-01", "1e3", "=", "0x1F"])
    def test_option_is_taken_as_written(self, text: str) -> None:
        """YAML would turn these into other numbers and dates."""
        result = loaded(f"{SMALLEST}kafka:\n  options:\n    sasl.password: {text}\n")
        assert result.pipeline.kafka.options == {"sasl.password": text}

    @pytest.mark.parametrize("text", ["true", "True", "yes", "on"])
    def test_yes_is_true_to_kafka(self, text: str) -> None:
        """Kafka accepts only `true`."""
        result = loaded(f"{SMALLEST}kafka:\n  options: {{socket.keepalive.enable: {text}}}\n")
        assert result.pipeline.kafka.options == {"socket.keepalive.enable": "true"}

    def test_arguments_keep_their_types(self) -> None:
        """The function's arguments have the types that YAML gives them."""
        result = loaded(f"{SMALLEST}process:\n  arguments: {{a: 5, b: [1, x], c: {{d: true}}, e: null}}\n")
        assert result.pipeline.process.arguments == {"a": 5, "b": [1, "x"], "c": {"d": True}, "e": None}


@pytest.mark.usefixtures("folder")
class TestSubstitution:
    """${NAME} inside a value."""

    def test_variable_is_substituted(self) -> None:
        """Several in one value, and in lists."""
        text = SMALLEST.replace("orders", "'${A}.${B}'")
        assert loaded(text, {"A": "one", "B": "two"}).pipeline.source.topics == ["one.two"]

    def test_substituted_text_is_not_substituted_again(self) -> None:
        """A password may itself contain ${…}."""
        text = SMALLEST + "kafka: {options: {sasl.password: '${A}'}}\n"
        assert loaded(text, {"A": "${B}"}).pipeline.kafka.options == {"sasl.password": "${B}"}

    def test_number_may_come_from_a_variable(self) -> None:
        """Text that is a number counts as one."""
        assert loaded(SMALLEST + "batch: {max_records: '${N}'}\n", {"N": "9"}).pipeline.batch.max_records == 9

    def test_two_dollars_escape(self) -> None:
        """The literal text is sometimes wanted."""
        text = SMALLEST + "process: {arguments: {a: '$${A}', b: '$A $5'}}\n"
        assert loaded(text).pipeline.process.arguments == {"a": "${A}", "b": "$A $5"}

    def test_unset_variable_is_an_error_with_its_line(self) -> None:
        """A forgotten secret does not become an empty one."""
        (problem,) = problems(SMALLEST + "kafka:\n  options:\n    sasl.password: ${PASSWORD}\n")
        assert problem.startswith("file.yaml:8: kafka.options.sasl.password: the variable PASSWORD is not set")

    def test_invalid_variable_name_is_an_error(self) -> None:
        """Shell syntax such as ${A:-b} is not supported."""
        (problem,) = problems(SMALLEST.replace("copies", "${A:-b}"))
        assert "takes the name of a variable" in problem


@pytest.mark.usefixtures("folder")
class TestSecrets:
    """No message shows a value that may be a secret."""

    @pytest.mark.parametrize(
        "text",
        [
            f"kafka: {{options: {{sasl.password: [{SECRET}]}}}}",
            f"kafka: {{options: {{sasl.password: {{{SECRET}: 1}}}}}}",
            f"kafka: {{options: {{sasl.pasword: {SECRET}}}}}",
            f"kafka: {{options: {SECRET}}}",
            f"kafka: {{sasl.password: {SECRET}}}",
            f"kafka: {SECRET}",
            f"kafka: {{options: {{sasl.password: !{SECRET}}}}}",
            f"kafka: {{options: {{sasl.password: *{SECRET}}}}}",
            f"kafka: {{options: {{sasl.password: !{SECRET}!x}}}}",
            f"kafka: {{options: {{a: &{SECRET} 1, sasl.password: &{SECRET} 2}}}}",
            f"kafka: {{options: {{sasl.password: '{SECRET}\n",
            f"batch: {{max_records: {{sasl.password: {SECRET}}}}}",
            "batch: {max_records: '${SECRET}'}",
        ],
    )
    def test_secret_in_the_file_is_not_shown(self, text: str) -> None:
        """Even when it is in the wrong place."""
        with pytest.raises(ConfigInvalid) as caught:
            loaded(f"{SMALLEST}{text}\n", {"SECRET": SECRET})
        assert SECRET not in str(caught.value)

    @pytest.mark.parametrize("name", ["SASL_PASSWRD", "SASL_PASSWORD__X", "SSL_KEY_PEMM"])
    def test_secret_in_a_variable_is_not_shown(self, name: str) -> None:
        """Only the variable's name is shown."""
        with pytest.raises(ConfigInvalid) as caught:
            loaded(SMALLEST, {f"TAILRACE_KAFKA__OPTIONS__{name}": SECRET})
        assert SECRET not in str(caught.value)


class TestMadeInPython:
    """The same messages for a configuration made in Python."""

    def test_pipeline_made_in_python(self) -> None:
        """There is one line for each problem, and no file."""
        with pytest.raises(ConfigInvalid) as caught:
            Pipeline.model_validate(
                {"pipeline": "a", "source": {"topics": ["a"], "partitions": "x"}, "sink": {"topc": "b"}}
            )
        assert caught.value.what.split("\n") == [
            "2 problems",
            "  source.partitions: 'x' is not a whole number",
            "  sink.topc: unknown key; did you mean 'topic'?",
        ]
        assert "tailrace explain configuration" in caught.value.then

    @pytest.mark.parametrize("given", [None, [], "a.yaml", {}])
    def test_no_pipeline_at_all(self, given: object) -> None:
        """What is no mapping, or an empty one, is refused in the same way."""
        with pytest.raises(ConfigInvalid, match="explain configuration"):
            Pipeline.model_validate(given)

    def test_part_of_a_pipeline(self) -> None:
        """A section made on its own is checked for its own keys."""
        makers: list[Callable[[], object]] = [
            lambda: Sink.model_validate({"formt": "raw"}),
            lambda: Sink(formt="raw"),  # type: ignore[call-arg]
        ]
        for make in makers:
            with pytest.raises(ConfigInvalid) as caught:
                make()
            assert caught.value.what == "formt: unknown key; did you mean 'format'?"

    def test_called_pipeline_reports_all_its_faults(self) -> None:
        """Calling the class is as good as model_validate: faults within sections are collected, with their places."""
        with pytest.raises(ConfigInvalid) as caught:
            Pipeline(pipeline="A", source={"topics": ["a"], "partitions": "x"}, sink={"topc": "b"})
        lines = caught.value.what.split("\n")
        assert lines[0] == "3 problems"
        assert "  source.partitions: 'x' is not a whole number" in lines
        assert "  sink.topc: unknown key; did you mean 'topic'?" in lines
        assert any(line.startswith("  pipeline: ") for line in lines)

    def test_called_section_reports_a_rule_and_an_unknown_option(self) -> None:
        """A rule between fields, and the names of Kafka options, are told in the same words."""
        with pytest.raises(ConfigInvalid, match=r"options\.fetch_max: unknown Kafka option"):
            Source(topics=["a"], options={"fetch_max": "1"})
        with pytest.raises(ConfigInvalid, match="either `topics` or `pattern`"):
            Source()

    def test_secret_is_shown_neither_by_tailrace_nor_by_pydantic(self) -> None:
        """Pydantic's own message would show its input."""
        with pytest.raises(ConfigInvalid) as caught:
            Pipeline.model_validate(
                {
                    "pipeline": "a",
                    "source": {"topics": ["a"]},
                    "sink": {},
                    "kafka": {"options": {"sasl.pasword": SECRET, "sasl.password": [SECRET]}},
                }
            )
        assert SECRET not in str(caught.value)
