"""Values files on top of each other: pipelines and topics are maps by name, of which one entry can be changed alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.helm import CHART, MONITORING, STRIMZI, Resource, executor, helm, named, of_kind, refusal, render, revision

CONFIG = {"source": {"topics": ["tweets"]}, "sink": {"topic": "hashtags", "format": "raw"}}
TWO: dict[str, Any] = {
    "kafka": {"topics": {"tweets": {"partitions": 4}, "hashtags": {"partitions": 4}}},
    "pipelines": {"tweets": None, "a": {"config": CONFIG}, "b": {"config": CONFIG}},
}
LISTS: dict[str, Any] = {
    "kafka": {"topics": [{"name": "tweets", "partitions": 4}, {"name": "hashtags", "partitions": 4}]},
    "pipelines": [{"name": "a", "config": CONFIG}, {"name": "b", "config": CONFIG}],
}


def layered(folder: Path, *layers: dict[str, Any]) -> list[Resource]:
    """Render dev with one values file for each layer, in this order."""
    files = [CHART / "environments" / "dev.yaml"]
    for number, layer in enumerate(layers):
        files.append(folder / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(layer), encoding="utf-8")
    apis = [f"--api-versions={each}" for each in (STRIMZI, MONITORING)]
    done = helm("template", "t", str(CHART), "--namespace", "streams", *apis, *(f"--values={each}" for each in files))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def differing(before: list[Resource], after: list[Resource]) -> set[tuple[str, str]]:
    """Return kind and name of the resources that only one rendering has, or that differ."""
    there, here = ({(each["kind"], each["metadata"]["name"]): each for each in made} for made in (before, after))
    return {key for key in {*there, *here} if there.get(key) != here.get(key)}


def test_second_file_changes_one_key_of_one_pipeline(tmp_path: Path) -> None:
    """The other pipeline, and everything that both share, renders as before."""
    before = layered(tmp_path, TWO)
    after = layered(tmp_path, TWO, {"pipelines": {"a": {"config": {"batch": {"max_records": 7}}}}})
    old, new = (revision(made, "t-a") for made in (before, after))
    assert differing(before, after) == {
        ("Deployment", "t-a"),
        ("Pod", "t-a-doctor"),
        ("ConfigMap", old["metadata"]["name"]),
        ("ConfigMap", new["metadata"]["name"]),
    }
    was, now = (yaml.safe_load(each["data"]["pipeline.yaml"]) for each in (old, new))
    assert now == was | {"batch": {"max_records": 7}}
    assert executor(before, "t-a") == executor(after, "t-a")


def test_second_file_changes_one_topic(tmp_path: Path) -> None:
    """It names one topic and one key."""
    before = layered(tmp_path, TWO)
    after = layered(tmp_path, TWO, {"kafka": {"topics": {"hashtags": {"partitions": 8}}}})
    [(kind, name)] = differing(before, after)
    assert named(after, kind, name)["spec"] == named(before, kind, name)["spec"] | {"partitions": 8}


def test_null_removes_a_pipeline_and_a_topic_of_an_earlier_file() -> None:
    """Dev's example goes, with its topics."""
    made = render("dev", {"pipelines": {"tweets": None}, "kafka": {"topics": {"tweets": None, "hashtags": None}}})
    assert not of_kind(made, "Deployment", "KafkaUser")
    assert [each["spec"]["topicName"] for each in of_kind(made, "KafkaTopic")] == ["tailrace.ledger"]


def test_lists_render_as_maps_do() -> None:
    """Version 0.1 had lists; their values files go on working, and replace what an earlier file says."""
    assert differing(render("dev", TWO), render("dev", LISTS)) == set()


def test_entry_of_a_map_cannot_have_another_name() -> None:
    """Its key is its name: the same entry, moved from a list, may repeat it."""
    message = refusal({"pipelines": {"a": {"name": "b", "config": CONFIG}}})
    assert "pipelines.a has the name b" in message
    assert (
        differing(
            render("dev", TWO),
            render("dev", TWO | {"pipelines": {**TWO["pipelines"], "a": {"name": "a", "config": CONFIG}}}),
        )
        == set()
    )


def test_refusal_names_the_place_in_a_map() -> None:
    """A topic is missing, and a name is none."""
    wrong = {"source": {"topics": ["nowhere"]}, "sink": {"topic": "hashtags"}}
    assert "pipelines.a: the topic nowhere is not in kafka.topics" in refusal({"pipelines": {"a": {"config": wrong}}})
    assert "'Aa' does not match pattern" in refusal({"pipelines": {"Aa": {"config": CONFIG}}})
    assert "missing property 'partitions'" in refusal({"kafka": {"topics": {"a": {}}}})


def test_notes_warn_about_lists() -> None:
    """Each list is named; maps give no warning."""
    warnings = []
    for values in (TWO, LISTS):
        done = helm(
            "install", "t", str(CHART), "--dry-run=client", "--disable-openapi-validation",
            values=values | {"kafka": values["kafka"] | {"mode": "external", "external": {"bootstrapServers": "a:1"}}},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        warnings.append([line.split()[1] for line in done.stdout.splitlines() if line.startswith("WARNING: ")])
    assert warnings == [[], ["kafka.topics", "pipelines"]]


def test_patience_with_brokers_is_the_pipelines_own() -> None:
    """The rest of the section is the chart's, because certificates and policies have to agree with it."""
    made = render("dev", {"pipelineDefaults": {"config": {"kafka": {"patience": "20m"}}}})
    section = yaml.safe_load(revision(made)["data"]["pipeline.yaml"])["kafka"]
    assert section["patience"] == "20m"
    assert section["bootstrap.servers"].startswith("t-kafka-kafka-bootstrap.")
    for key in ("bootstrap.servers", "options"):
        assert f"'{key}' not allowed" in refusal({"pipelineDefaults": {"config": {"kafka": {key: "x"}}}})
