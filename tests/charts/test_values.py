"""The values' schema is the configuration's, and a wrong value is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from support.helm import CHART, ROOT, helm, refusal, render
from tailrace.config import Pipeline, Section
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


def test_the_schema_is_that_of_the_code() -> None:
    """`make charts-schema` writes it anew."""
    written, given = (
        yaml.safe_load(file.read_text(encoding="utf-8")) for file in (HAND_WRITTEN, CHART / "values.yaml")
    )
    made = chart.values(written, given)
    assert json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")) == made


def test_every_field_of_the_configuration_is_a_value() -> None:
    """But for those that the chart writes."""
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
    """The objects of a schema that take any key."""
    if isinstance(schema, list):
        return [found for each in schema for found in closed(each, path)]
    if not isinstance(schema, dict):
        return []
    found = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
    for key, value in schema.items():
        found += closed(value, f"{path}/{key}")
    return found


def test_no_part_of_the_values_takes_an_unknown_key() -> None:
    """A key that is spelled wrong would be a value that nobody reads."""
    assert closed(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))) == []


def test_the_files_of_values_have_no_key_that_the_schema_lacks() -> None:
    """Nor the schema one that has no default and no description in values.yaml."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    given = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(given)
    assert set(schema["$defs"]["pipeline"]["properties"]) - {"name"} == set(given["pipelineDefaults"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kafka": {"mode": "kraft"}}, ("/kafka/mode", "'strimzi', 'external'")),
        ({"kafak": {}}, ("'kafak'",)),
        ({"pipelineDefaults": {"config": {"sink": {"tpic": "a"}}}}, ("/config/sink", "'tpic'")),
        ({"pipelineDefaults": {"config": {"kafka": {}}}}, ("/config", "'kafka'")),
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
        ({"kafka": {"strimzi": {"certificates": {"validityDays": 10}}}}, ("validityDays is 10", "30 days")),
        ({"kafka": {"ledger": {"partitions": 3}}}, ("it has 4 sink partitions", "kafka.ledger.partitions is 3")),
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
            ("A is in env and in secretEnv",),
        ),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(wrong: dict[str, Any], says: tuple[str, ...]) -> None:
    """Where it is, and what it may be."""
    told = refusal(values=wrong)
    assert [each for each in says if each not in told] == [], told


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": {"topics": ["a"]}, "sink": {"topic": "hashtags"}}, "the topic a is not made by kafka.topics"),
        ({"source": {"topics": ["tweets"]}, "sink": {"topic": "b"}}, "the topic b is not made by kafka.topics"),
        ({"source": {"topics": ["tweets"]}, "sink": {"topic": "tweets"}}, "would read what it has written"),
        ({"source": {"topics": []}, "sink": {"topic": "hashtags"}}, "neither topics nor a pattern"),
        ({"source": {"topics": ["tweets"], "pattern": "t.*"}, "sink": {"topic": "hashtags"}}, "topics and a pattern"),
    ],
)
def test_topics_that_no_driver_could_use_are_refused(config: dict[str, Any], says: str) -> None:
    """With the pipeline's place; the driver would find it only in its pod."""
    told = refusal(values={"pipelines": [{"name": "a", "config": config}]})
    assert "pipelines[0] (a)" in told
    assert says in told


def test_a_topic_may_be_somebody_elses() -> None:
    """Where it is named as such."""
    config = {"source": {"topics": ["theirs"]}, "sink": {"topic": "hashtags"}}
    render(values={"pipelines": [{"name": "a", "config": config}], "kafka": {"existingTopics": ["theirs"]}})


@pytest.mark.parametrize("names", [("bucket",), ("object-store",), ("dashboard-overview",), ("a", "a-executor")])
def test_pipelines_do_not_take_the_names_of_other_objects(names: tuple[str, ...]) -> None:
    """Two objects of one name would be one, and the executors of one pipeline would have the rights of a driver."""
    config = {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}
    told = refusal(values={"pipelines": [{"name": name, "config": config} for name in names]})
    assert "Next: rename" in told


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
def test_settings_of_spark_that_other_objects_follow_are_the_charts(setting: str) -> None:
    """A second value would open ports that no policy knows, or make executors that nobody restricts."""
    told = refusal(values={"pipelineDefaults": {"config": {"spark": {setting: "9999"}}}})
    assert f"config.spark has {setting}" in told


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"source": {"pattern": "a.*"}, "sink": {"topic": "b"}}, "topics.readPrefixes"),
        ({"source": {"topics": ["a"]}, "sink": {"format": "json"}}, "topics.write"),
    ],
)
def test_rights_that_cannot_be_derived_are_asked_for(config: dict[str, Any], says: str) -> None:
    """A user without them would be refused by the brokers, at three in the morning."""
    assert says in refusal(values={"pipelines": [{"name": "a", "config": config}]})


def test_two_pipelines_of_one_name_are_refused() -> None:
    """They would take each other's transactions."""
    one = {"name": "a", "config": {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags"}}}
    assert "there are two pipelines of this name" in refusal(values={"pipelines": [one, one]})


def test_without_strimzi_the_message_says_so() -> None:
    """And what to do, before anything is installed."""
    told = refusal(apis=())
    assert "Strimzi's operator (1.0 or newer) is not installed" in told
    assert "kafka.mode=external" in told


def test_without_pipelines_the_platform_is_installed() -> None:
    """The notes say how to go on."""
    made = render(values={"pipelines": []})
    assert not [each for each in made if each["kind"] == "Deployment"]


def test_the_notes_name_the_next_commands() -> None:
    """For the release and the namespace that it is in."""
    dev = str(CHART / "environments" / "dev.yaml")
    values = {"kafka": {"mode": "external", "external": {"bootstrapServers": "k:9092"}}}
    done = helm("install", "t", str(CHART), "-n", "streams", "--dry-run=client", "--values", dev, values=values)
    assert done.returncode == 0, done.stderr
    assert "kubectl -n streams rollout status deploy/t-tweets" in done.stdout
    assert "helm -n streams test t --logs" in done.stdout
