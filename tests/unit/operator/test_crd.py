"""The Pipeline resource has the same fields as the configuration, in a schema that Kubernetes accepts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tailrace.config import Pipeline, Section
from tailrace.errors import InvariantBroken
from tailrace_operator.crd import crd, structural

LIMIT = 60.0


@pytest.fixture
def version() -> dict[str, Any]:
    """Return the only version of the definition."""
    (only,) = crd()["spec"]["versions"]
    assert isinstance(only, dict)
    return only


@pytest.fixture
def spec(version: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a resource's spec."""
    found = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
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
    made = crd()
    assert made["apiVersion"] == "apiextensions.k8s.io/v1"
    assert made["metadata"]["name"] == f"{made['spec']['names']['plural']}.{made['spec']['group']}"
    assert made["metadata"]["name"] == "pipelines.tailrace.dev"
    assert made["spec"]["scope"] == "Namespaced"
    assert made["spec"]["names"]["kind"] == "Pipeline"
    assert made["spec"]["names"]["shortNames"] == ["tp"]


def test_version_is_served_with_a_status(version: dict[str, Any]) -> None:
    """The operator writes the status alone, as a subresource."""
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["subresources"] == {"status": {}}


def test_columns_show_what_the_schema_has(version: dict[str, Any]) -> None:
    """A column whose path does not exist would stay empty forever."""
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Pipeline", "Phase", "Lag", "Age"]
    resource = version["schema"]["openAPIV3Schema"]["properties"]
    for path in (columns["Pipeline"], columns["Phase"], columns["Lag"]):
        part, name = path.strip(".").split(".")
        assert name in resource[part]["properties"]


def test_every_field_of_the_configuration_is_in_the_spec(spec: dict[str, Any]) -> None:
    """Each has the name and the place that it has in the file."""

    def compare(section: type[Section], schema: dict[str, Any]) -> None:
        fields = {info.alias or name: info for name, info in section.model_fields.items()}
        assert list(schema["properties"]) == list(fields)
        assert schema.get("required", []) == [name for name, info in fields.items() if info.is_required()]
        for name, info in fields.items():
            options = (info.annotation, *getattr(info.annotation, "__args__", ()))
            inner = [each for each in options if isinstance(each, type) and issubclass(each, Section)]
            if inner:
                compare(inner[0], schema["properties"][name])

    compare(Pipeline, spec)


def test_schema_is_structural(spec: dict[str, Any]) -> None:
    """It has nothing that the API server refuses or that only pydantic understands."""
    for schema in schemas(spec):
        assert not schema.keys() & {"$ref", "$defs", "anyOf", "allOf", "oneOf", "const", "title", "default"}
        if schema.get("x-kubernetes-int-or-string"):
            assert schema.keys() <= {"x-kubernetes-int-or-string", "description"}
            return
        assert schema["type"] in {"object", "array", "string", "integer", "number", "boolean"}
        assert not ("properties" in schema and "additionalProperties" in schema)
        assert schema.get("additionalProperties") is not False
        assert ("items" in schema) == (schema["type"] == "array")


def test_optional_fields_are_nullable(spec: dict[str, Any]) -> None:
    """Such a field has one type, or null."""
    assert spec["properties"]["sink"]["properties"]["topic"]["nullable"] is True
    assert spec["properties"]["sink"]["properties"]["registry"]["nullable"] is True
    assert "nullable" not in spec["properties"]["pipeline"]


def test_ranges_and_choices_are_kept(spec: dict[str, Any]) -> None:
    """The API server refuses what the configuration would refuse."""
    assert spec["properties"]["process"]["properties"]["partitions"]["maximum"] == 10_000
    assert spec["properties"]["batch"]["properties"]["max_records"]["minimum"] == 1
    assert spec["properties"]["source"]["properties"]["on_data_loss"]["enum"] == ["stop", "reset"]
    assert re.fullmatch(spec["properties"]["source"]["properties"]["format"]["pattern"], "avro")
    assert not re.fullmatch(spec["properties"]["source"]["properties"]["format"]["pattern"], "avr")


def test_free_maps_keep_their_keys(spec: dict[str, Any]) -> None:
    """Kubernetes prunes what the schema does not know, so each map declares its contents."""
    process = spec["properties"]["process"]["properties"]
    assert process["arguments"]["x-kubernetes-preserve-unknown-fields"] is True
    assert process["validate"]["additionalProperties"] == {"type": "string"}
    assert spec["properties"]["spark"]["additionalProperties"] == {"type": "string"}


def test_default_is_described_but_not_written_into_resources(spec: dict[str, Any]) -> None:
    """The API server would freeze today's default into every resource."""
    field = spec["properties"]["ledger"]["properties"]["partitions"]
    assert field["description"].endswith("Default: 64.")


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"const": "a", "type": "string", "title": "A"}, {"type": "string", "enum": ["a"]}),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, {"type": "integer", "nullable": True}),
        ({"$ref": "#/$defs/A", "description": "own"}, {"type": "string", "description": "own"}),
        ({"type": "array", "items": {"$ref": "#/$defs/A"}}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "object", "additionalProperties": False}, {"type": "object"}),
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
        {"type": "object", "patternProperties": {}},
    ],
)
def test_schema_that_kubernetes_cannot_express_is_an_error(schema: dict[str, Any]) -> None:
    """A schema weaker than the configuration would silently let wrong resources in."""
    with pytest.raises(InvariantBroken):
        structural(schema, {})


def test_module_prints_the_definition() -> None:
    """The charts get it with `python -m tailrace_operator.crd`."""
    result = subprocess.run(
        [sys.executable, "-m", "tailrace_operator.crd"], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert yaml.safe_load(result.stdout) == crd()
    assert "&id" not in result.stdout
