"""The schema of the values matches the configuration, and a wrong value is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.helm import CHART, ENVIRONMENTS, ROOT, helm, refusal, render
from tailrace.config import Pipeline, Section
from tailrace.version import DOCUMENTATION
from tailrace_operator import chart
from tailrace_operator.chart import WRITTEN

POOL = {
    "name": "all",
    "roles": ["controller", "broker"],
    "replicas": 1,
    "storage": {"type": "ephemeral"},
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
}
TOPIC = {"name": "a", "partitions": 1}
EMBEDDED = {"objectStorage": {"mode": "embedded", "embedded": {"image": {"repository": "s3"}}}}
HAND_WRITTEN = ROOT / "charts" / "values.schema.yaml"


def test_schema_matches_the_code() -> None:
    """`make charts-schema` writes it."""
    written, given = (
        yaml.safe_load(file.read_text(encoding="utf-8")) for file in (HAND_WRITTEN, CHART / "values.yaml")
    )
    made = chart.values(written, given)
    assert json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")) == made


@pytest.mark.parametrize("file", ["values.yaml", *(f"environments/{name}.yaml" for name in ENVIRONMENTS)])
def test_values_file_names_a_schema_that_accepts_it_by_itself(file: str, tmp_path: Path) -> None:
    """Editors complete by it; a file that changes some values need not repeat all the others."""
    path = CHART / file
    found = re.match(r"# yaml-language-server: \$schema=(\S+)\n", path.read_text(encoding="utf-8"))
    assert found
    named = (path.parent / found[1]).resolve()
    schema = json.loads(named.read_text(encoding="utf-8"))
    place = named.relative_to(ROOT / "docs" if file != "values.yaml" else CHART).as_posix()
    assert schema["$id"] == f"{DOCUMENTATION}{'chart/' if file == 'values.yaml' else ''}{place}"
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: check\nversion: 0.0.1\n")
    shutil.copy(named, tmp_path / "values.schema.json")
    (tmp_path / "templates").mkdir()
    assert helm("template", "t", str(tmp_path), "--values", str(path)).returncode == 0
    assert "imagse" in helm("template", "t", str(tmp_path), "--values", str(path), values={"imagse": {}}).stderr


def test_every_field_of_the_configuration_is_a_value() -> None:
    """Except for those that the chart writes."""
    definitions = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["$defs"]

    def compare(section: type[Section], name: str) -> None:
        fields = {info.alias or field: info for field, info in section.model_fields.items()}
        assert set(definitions[name]["properties"]) == set(fields) - set(WRITTEN.get(section.__name__, ()))
        assert definitions[name]["additionalProperties"] is False
        for info in fields.values():
            for each in (info.annotation, *getattr(info.annotation, "__args__", ())):
                if isinstance(each, type) and issubclass(each, Section) and each.__name__ in definitions:
                    compare(each, each.__name__)

    compare(Pipeline, "config")


def closed(schema: Any, path: str = "") -> list[str]:
    """List the objects of a schema that accept any key."""
    if isinstance(schema, list):
        return [found for each in schema for found in closed(each, path)]
    if not isinstance(schema, dict):
        return []
    found = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
    for key, value in schema.items():
        found += closed(value, f"{path}/{key}")
    return found


def test_no_part_of_the_values_accepts_an_unknown_key() -> None:
    """A misspelled key would be silently ignored; only `global` also has the keys of other charts."""
    assert closed(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))) == ["/properties/global"]


def test_values_file_and_schema_have_the_same_keys() -> None:
    """Each key of the schema has its default and description in values.yaml."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    given = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) == set(given)
    assert set(schema["$defs"]["pipeline"]["properties"]) - {"name"} == set(given["pipelineDefaults"])


def test_topic_may_have_more_partitions_than_the_ledger() -> None:
    """How many sink partitions a batch has follows from its size and the slots, not from the topic."""
    topics = {"tweets.out": {"partitions": 128}}
    config = {"sink": {"topic": "tweets.out"}}
    assert render(values={"kafka": {"topics": topics}, "pipelines": {"tweets": {"config": config}}})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kafka": {"mode": "kraft"}}, ("/kafka/mode", "'strimzi', 'external'")),
        ({"kafak": {}}, ("'kafak'",)),
        ({"pipelineDefaults": {"config": {"sink": {"tpic": "a"}}}}, ("/config/sink", "'tpic'")),
        ({"pipelineDefaults": {"config": {"kafka": {"options": {}}}}}, ("/config/kafka", "'options'")),
        ({"pipelineDefaults": {"config": {"sink": {"options": {"acsk": "1"}}}}}, ("/config/sink/options", "'acsk'")),
        ({"pipelineDefaults": {"config": {"batch": {"max_records": 0}}}}, ("/config/batch/max_records", "minimum")),
        ({"pipelineDefaults": {"executors": {"instances": 0}}}, ("/executors/instances", "minimum")),
        ({"pipelineDefaults": {"upgrade": "now"}}, ("/upgrade", "'hand-over', 'drain'")),
        ({"pipelines": [{"name": "Tweets", "config": {}}]}, ("/pipelines/0/name",)),
        ({"pipelines": [{"config": {}}]}, ("/pipelines/0", "'name'")),
        ({"pipelines": [{"name": "a", "config": {"sink": {}}}]}, ("pipelines[0] (a)", "config.source is missing")),
        ({"kafka": {"strimzi": {"replication": 3}}}, ("kafka.strimzi.replication is 3", "1 brokers")),
        ({"kafka": {"strimzi": {"minInSync": 2}}}, ("kafka.strimzi.minInSync is 2",)),
        ({"kafka": {"mode": "external"}}, ("kafka.external.bootstrapServers is empty",)),
        ({"kafka": {"external": {"bootstrapServers": "broker.example"}}}, ("/kafka/external/bootstrapServers",)),
        ({"objectStorage": {"mode": "embedded"}}, ("objectStorage.embedded.image.repository is empty",)),
        ({"pipelineDefaults": {"config": {"checkpoint": "s3a://a/b"}}}, ("s3a://a/b", "objectStorage.mode is none")),
        ({"pipelineDefaults": {"config": {"checkpoint": "/data"}}}, ("config.checkpoint is /data",)),
        ({"pipelineDefaults": {"files": {"pipeline.yaml": ""}}}, ('files has "pipeline.yaml"',)),
        ({"fullnameOverride": "A"}, ("/fullnameOverride",)),
        ({"pipelineDefaults": {"env": {"a-b": "x"}}}, ("/pipelineDefaults/env", "'a-b'")),
        ({"http": {"port": 80}}, ("/http/port",)),
        ({"pipelineDefaults": {"executors": None}}, ("/pipelineDefaults", "missing property 'executors'")),
        ({"kafka": {"strimzi": {"pools": [POOL | {"storage": {"type": "persistent-claim"}}]}}}, ("storage.size",)),
        ({"kafka": {"strimzi": {"pools": [POOL, POOL]}}}, ("kafka.strimzi.pools has all twice",)),
        ({"kafka": {"topics": [TOPIC, TOPIC]}}, ("kafka.topics has a twice",)),
        ({"kafka": {"topics": [TOPIC | {"replicas": 3}]}}, ("a has 3 replicas", "1 brokers")),
        (
            {"kafka": {"strimzi": {"certificates": {"validityDays": 10, "renewalDays": 30}}}},
            ("validityDays is 10", "30 days"),
        ),
        ({"kafka": {"strimzi": {"certificates": {"validityDays": 10}}}}, ("validityDays is 10", "set both")),
        ({"kafka": {"strimzi": {"create": False}}}, ("kafka.strimzi.create is false", "kafka.strimzi.cluster")),
        (
            {"kafka": {"ledger": {"partitions": 3}}, "pipelineDefaults": {"config": {"sink": {"partitions": 4}}}},
            ("it has 4 sink partitions", "kafka.ledger.partitions is 3"),
        ),
        ({"kafka": {"strimzi": {"keep": True}}} | EMBEDDED, ("objectStorage.mode is embedded", "keep")),
        ({"pipelineDefaults": {"driver": {"memory": "8g"}}}, ("driver.memory", "is 8g", "1280Mi")),
        ({"pipelineDefaults": {"config": {"executors": {"min": 5, "max": 2}}}}, ("executors.min is 5", "max (2)")),
        ({"ports": {"driver": 7079}}, ("ports.blockManager and ports.driver are both 7079",)),
        ({"monitoring": {"from": []}}, ("/monitoring/from",)),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, ("/networkPolicy/apiServer/ports",)),
        ({"networkPolicy": {"dnsPorts": []}}, ("/networkPolicy/dnsPorts",)),
        ({"pipelineDefaults": {"env": {"HOME": "/"}}}, ("env or secretEnv has HOME",)),
        (
            {"pipelineDefaults": {"env": {"A": "b"}, "secretEnv": {"A": {"secret": "b", "key": "c"}}}},
            ("A is in both env and secretEnv",),
        ),
    ],
)  # fmt: skip
def test_wrong_value_is_named(wrong: dict[str, Any], says: tuple[str, ...]) -> None:
    """The message gives its place, and the allowed values."""
    message = refusal(values=wrong)
    assert [each for each in says if each not in message] == [], message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": {"topics": ["a"]}, "sink": {"topic": "hashtags"}}, "the topic a is not in kafka.topics"),
        ({"source": {"topics": ["tweets"]}, "sink": {"topic": "b"}}, "the topic b is not in kafka.topics"),
        ({"source": {"topics": ["tweets"]}, "sink": {"topic": "tweets"}}, "would read its own output"),
        ({"source": {"topics": []}, "sink": {"topic": "hashtags"}}, "neither topics nor a pattern"),
        ({"source": {"topics": ["tweets"], "pattern": "t.*"}, "sink": {"topic": "hashtags"}}, "topics and a pattern"),
    ],
)
def test_topics_that_no_driver_could_use_are_refused(config: dict[str, Any], says: str) -> None:
    """The message names the pipeline; otherwise the error would appear only in the driver's pod."""
    message = refusal(values={"pipelines": [{"name": "a", "config": config}]})
    assert "pipelines[0] (a)" in message
    assert says in message


def test_existing_topic_is_accepted() -> None:
    """If kafka.existingTopics names it."""
    config = {"source": {"topics": ["theirs"]}, "sink": {"topic": "hashtags"}}
    render(values={"pipelines": [{"name": "a", "config": config}], "kafka": {"existingTopics": ["theirs"]}})


@pytest.mark.parametrize("names", [("bucket",), ("object-store",), ("dashboard-overview",), ("a", "a-executor")])
def test_pipelines_must_not_take_the_names_of_other_objects(names: tuple[str, ...]) -> None:
    """Objects would overwrite each other, and one pipeline's executors would have the rights of another's driver."""
    config = {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}
    message = refusal(values={"pipelines": [{"name": name, "config": config} for name in names]})
    assert "Next: rename" in message


@pytest.mark.parametrize(
    "setting",
    [
        "spark.driver.port",
        "spark.master",
        "spark.executor.instances",
        "spark.kubernetes.namespace",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.executor.secretKeyRef.A",
    ],
)
def test_spark_settings_that_the_chart_writes_are_refused(setting: str) -> None:
    """A second value would open ports that no policy covers, or make unrestricted executors."""
    message = refusal(values={"pipelineDefaults": {"config": {"spark": {setting: "9999"}}}})
    assert f"config.spark has {setting}" in message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": {"pattern": "a.*"}, "sink": {"topic": "b"}}, "topics.readPrefixes"),
        ({"source": {"topics": ["a"]}, "sink": {"format": "json"}}, "config.sink.topics"),
    ],
)
def test_rights_that_cannot_be_derived_are_required(config: dict[str, Any], says: str) -> None:
    """Without them the brokers would refuse the user at run time."""
    assert says in refusal(values={"pipelines": [{"name": "a", "config": config}]})


def test_two_pipelines_with_the_same_name_are_refused() -> None:
    """They would fence each other's transactions."""
    one = {"name": "a", "config": {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}}
    assert "two pipelines have this name" in refusal(values={"pipelines": [one, one]})


def test_missing_strimzi_is_reported_before_the_install() -> None:
    """The message names an alternative."""
    message = refusal(apis=())
    assert "Strimzi's operator (1.0 or newer) is not installed" in message
    assert "kafka.mode=external" in message


def test_platform_installs_without_pipelines() -> None:
    """No driver is deployed."""
    made = render(values={"pipelines": []})
    assert not [each for each in made if each["kind"] == "Deployment"]


def test_notes_name_the_next_commands() -> None:
    """With the release's name and namespace."""
    dev = str(CHART / "environments" / "dev.yaml")
    values = {"kafka": {"mode": "external", "external": {"bootstrapServers": "k:9092"}}}
    done = helm("install", "t", str(CHART), "-n", "streams", "--dry-run=client", "--values", dev, values=values)
    assert done.returncode == 0, done.stderr
    assert "kubectl -n streams rollout status deploy/t-tweets" in done.stdout
    assert "helm -n streams test t --logs" in done.stdout
