"""The Pipeline resource has the fields of the chart's entry of a pipeline, in a schema that Kubernetes accepts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.helm import CHART
from tailrace.config import Pipeline, Section
from tailrace.errors import InvariantBroken
from tailrace_operator.chart import WRITTEN
from tailrace_operator.crd import crd, operation, structural
from tailrace_operator.overlay import SUFFIX

LIMIT = 60.0
VALUES = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def version() -> dict[str, Any]:
    """Return the only version of the definition."""
    (only,) = crd(VALUES)["spec"]["versions"]
    assert isinstance(only, dict)
    return only


@pytest.fixture
def spec(version: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a resource's spec."""
    found = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def config(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a spec's configuration."""
    found = spec["properties"]["config"]
    assert isinstance(found, dict)
    return found


def schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema and all schemas in it."""
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from schemas(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key])


def test_definition_is_that_of_pipelines() -> None:
    """It has their group, names and scope."""
    made = crd(VALUES)
    assert made["apiVersion"] == "apiextensions.k8s.io/v1"
    assert made["metadata"]["name"] == f"{made['spec']['names']['plural']}.{made['spec']['group']}"
    assert made["metadata"]["name"] == "tailracepipelines.streaming.tailrace.dev"
    assert made["spec"]["scope"] == "Namespaced"
    assert made["spec"]["names"]["kind"] == "Pipeline"


def test_names_do_not_collide_with_those_of_tekton() -> None:
    """Its Pipelines are `pipelines`, too, and kubectl takes the one that it finds first."""
    names = crd(VALUES)["spec"]["names"]
    assert not {names["plural"], names["singular"], *names["shortNames"]} & {"pipelines", "pipeline", "tp"}
    assert "tlr" in names["shortNames"]


def test_version_is_served_with_a_status(version: dict[str, Any]) -> None:
    """The operator writes the status alone, as a subresource."""
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["subresources"]["status"] == {}


def test_scale_is_the_number_of_executors(version: dict[str, Any], spec: dict[str, Any]) -> None:
    """`kubectl scale` writes the key that the chart reads, and the status has the paths that it reads."""
    scale = version["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.executors.instances"
    assert spec["properties"]["executors"]["properties"]["instances"]["type"] == "integer"
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    paths = [scale["statusReplicasPath"], scale["labelSelectorPath"]]
    assert [status[each.removeprefix(".status.")]["type"] for each in paths] == ["integer", "string"]


def test_columns_show_what_the_schema_has(version: dict[str, Any]) -> None:
    """A column whose path does not exist would stay empty forever."""
    resource = version["schema"]["openAPIV3Schema"]["properties"]
    for column in version["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".status."):
            name = re.split(r"[.\[]", column["jsonPath"])[2]
            assert name in resource["status"]["properties"]


def test_every_field_of_the_configuration_is_in_the_spec(config: dict[str, Any]) -> None:
    """Each has the name and the place that it has in the file, but for those that the chart writes."""

    def compare(section: type[Section], schema: dict[str, Any]) -> None:
        fields = {info.alias or name: info for name, info in section.model_fields.items()}
        written = WRITTEN.get(section.__name__, ())
        assert list(schema["properties"]) == [name for name in fields if name not in written]
        for name, info in fields.items():
            options = (info.annotation, *getattr(info.annotation, "__args__", ()))
            inner = [each for each in options if isinstance(each, type) and issubclass(each, Section)]
            if inner and name not in written:
                compare(inner[0], schema["properties"][name])

    compare(Pipeline, config)


def test_every_value_of_a_pipeline_is_in_the_spec(spec: dict[str, Any]) -> None:
    """A pipeline moves from the chart's values to a resource as it is; its name is the resource's."""
    entry = set(VALUES["$defs"]["pipeline"]["properties"]) - {"name", "enabled"}
    assert set(spec["properties"]) == entry | {"suspend", "paused", "waitFor", "deletionPolicy", "shadow"}


def test_schema_is_structural(spec: dict[str, Any]) -> None:
    """It has nothing that the API server refuses or that only pydantic understands."""
    (version,) = operation()["spec"]["versions"]
    for schema in [*schemas(spec), *schemas(version["schema"]["openAPIV3Schema"])]:
        assert not schema.keys() & {"$ref", "$defs", "anyOf", "allOf", "oneOf", "const", "title", "default"}
        if schema.get("x-kubernetes-int-or-string"):
            assert schema.keys() <= {"x-kubernetes-int-or-string", "description"}
            continue
        if "type" not in schema:
            assert schema["x-kubernetes-preserve-unknown-fields"] is True
            continue
        assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert not ("properties" in schema and "additionalProperties" in schema)
        assert schema.get("additionalProperties") is not False
        assert ("items" in schema) == (schema["type"] == "array")


def test_optional_fields_are_nullable(config: dict[str, Any]) -> None:
    """Such a field has one type, or null."""
    assert config["properties"]["sink"]["properties"]["topic"]["nullable"] is True
    assert config["properties"]["sink"]["properties"]["registry"]["nullable"] is True
    assert "nullable" not in config["properties"]["source"]


def test_ranges_and_choices_are_kept(config: dict[str, Any]) -> None:
    """The API server refuses what the configuration would refuse."""
    assert config["properties"]["process"]["properties"]["partitions"]["maximum"] == 10_000
    assert config["properties"]["batch"]["properties"]["max_records"]["minimum"] == 1
    assert config["properties"]["source"]["properties"]["on_data_loss"]["enum"] == ["stop", "reset"]
    assert re.fullmatch(config["properties"]["source"]["properties"]["format"]["pattern"], "avro")
    assert not re.fullmatch(config["properties"]["source"]["properties"]["format"]["pattern"], "avr")


def test_free_maps_keep_their_keys(config: dict[str, Any]) -> None:
    """Kubernetes prunes what the schema does not know, so each map declares its contents."""
    process = config["properties"]["process"]["properties"]
    assert process["arguments"]["x-kubernetes-preserve-unknown-fields"] is True
    assert process["validate"]["additionalProperties"] == {"x-kubernetes-preserve-unknown-fields": True}
    assert config["properties"]["spark"]["additionalProperties"] == {"type": "string"}


def test_default_is_described_but_not_written_into_resources(config: dict[str, Any]) -> None:
    """The API server would freeze today's default into every resource."""
    field = config["properties"]["batch"]["properties"]["drain"]
    assert "Default: " in field["description"]
    assert "default" not in field


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"const": "a", "type": "string", "title": "A"}, {"type": "string", "enum": ["a"]}),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "integer", "nullable": True}),
        ({"$ref": "#/$defs/A", "description": "own"}, {"type": "string", "description": "own"}),
        ({"type": "array", "items": {"$ref": "#/$defs/A"}}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
        ({"type": ["string", "number"]}, {"x-kubernetes-preserve-unknown-fields": True}),
        ({"enum": ["a", "b"]}, {"enum": ["a", "b"], "type": "string"}),
        (
            {"type": "object", "additionalProperties": False, "patternProperties": {"^a$": {"type": "string"}}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
    ],
)
def test_pydantic_keywords_are_translated(schema: dict[str, Any], made: dict[str, Any]) -> None:
    """These are the keywords of pydantic that Kubernetes words differently."""
    assert structural(schema, {"A": {"type": "string"}}) == made


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        {"type": "string", "contentEncoding": "base64"},
    ],
)
def test_schema_that_kubernetes_cannot_express_is_an_error(schema: dict[str, Any]) -> None:
    """A schema weaker than the configuration would silently let wrong resources in."""
    with pytest.raises(InvariantBroken):
        structural(schema, {})


def test_module_prints_the_definition() -> None:
    """The operator's chart gets it so."""
    result = subprocess.run(
        [sys.executable, "-m", "tailrace_operator.crd", str(CHART / "values.schema.json")],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    assert list(yaml.safe_load_all(result.stdout)) == [crd(VALUES), operation()]
    assert "&id" not in result.stdout


def test_name_that_would_be_too_long_for_its_objects_is_refused(version: dict[str, Any]) -> None:
    """The chart cuts longer ones, and names the objects otherwise then; a shadow has a suffix more."""
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    limit = int(re.findall(r"trunc (\d+)", helpers)[0])
    assert limit <= VALUES["$defs"]["pipelineName"]["maxLength"]
    rules = {each["rule"] for each in version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]}
    assert f"self.metadata.name.size() <= {limit}" in rules
    assert f"!has(self.spec.shadow) || self.metadata.name.size() <= {limit - len(SUFFIX)}" in rules
