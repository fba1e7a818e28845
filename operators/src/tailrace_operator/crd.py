"""The definitions of the Pipeline, from the schemas of the chart and of the configuration, and of the operation.

A Pipeline's spec is the chart's entry of a pipeline, whose `config` is the configuration file, so nothing is written
twice: it is translated, because Kubernetes requires a structural schema, without references and without unions. What
it cannot say, the operator's rendering of the chart does.
`python -m tailrace_operator.crd charts/tailrace/values.schema.json` prints them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from tailrace.config import Pipeline
from tailrace.config.resource import GROUP, KIND, OPERATION, OPERATIONS, PLURAL, VERSION
from tailrace.errors import InvariantBroken
from tailrace_operator.chart import WRITTEN
from tailrace_operator.schemas import (
    ANYTHING,
    COLUMNS,
    NAME_RULES,
    OPERATION_COLUMNS,
    OPERATION_SCHEMA,
    OTHERWISE,
    RULES,
    SCALE,
    STATUS,
    SWITCHES,
    Schema,
)

SHORT_NAMES = ["tailrace", "tlr"]
CATEGORY = "streaming"
# To remove a definition is to delete every Pipeline, so neither Helm nor Argo CD nor Flux does it.
ANNOTATIONS = {
    "helm.sh/resource-policy": "keep",
    "argocd.argoproj.io/sync-options": "Prune=false",
    "argocd.argoproj.io/sync-wave": "-2",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
}

# Schema keywords that mean the same to Kubernetes.
KEPT = (
    "type", "description", "enum", "format", "pattern",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "required",
)  # fmt: skip
# Keywords omitted from a structural schema. Defaults are left to the running code: the API server would write today's
# defaults into every resource, where no later version could change them.
DROPPED = {"title", "default", "$defs", "examples", "uniqueItems"}
# A number, or text with a unit: the only union Kubernetes supports. Its number is an integer; 0.5 is written 500ms.
EITHER = "x-kubernetes-int-or-string"
# Keywords translated below.
TRANSLATED = {"$ref", "anyOf", "const", "properties", "additionalProperties", "patternProperties", "items"}


def crd(values: Schema) -> Schema:
    """Build the definition of the Pipeline; `values` is the schema of the chart's values."""
    return _definition(KIND, PLURAL, SHORT_NAMES, COLUMNS, _resource(values), status={}, scale=dict(SCALE))


def operation() -> Schema:
    """Build the definition of the PipelineOperation."""
    return _definition(OPERATION, OPERATIONS, ["tlrop"], OPERATION_COLUMNS, deepcopy(OPERATION_SCHEMA), status={})


def _definition(
    kind: str, plural: str, short: list[str], columns: list[Schema], schema: Schema, **subresources: Schema
) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "annotations": dict(ANNOTATIONS)},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": plural.removesuffix("s"),
                "shortNames": list(short),
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": deepcopy(columns),
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _resource(values: Schema) -> Schema:
    return {
        "type": "object",
        "description": "A Tailrace pipeline: a source, decode → process → encode, a sink.",
        "required": ["spec"],
        "properties": {"spec": spec(values), "status": deepcopy(STATUS)},
        "x-kubernetes-validations": deepcopy(NAME_RULES),
    }


def spec(values: Schema) -> Schema:
    """Build the schema of a spec: the chart's entry, with the configuration in its place."""
    definitions = values["$defs"]
    entry = deepcopy(definitions["pipeline"]["properties"])
    entry = {name: each for name, each in entry.items() if name not in OTHERWISE | {"config"}}
    made = {"config": _config(), **structural({"type": "object", "properties": entry}, definitions)["properties"]}
    return {
        "type": "object",
        "description": "A pipeline as in the values of the chart.",
        "required": ["config"],
        "properties": {**made, **deepcopy(SWITCHES)},
        "x-kubernetes-validations": deepcopy(RULES),
    }


def _config() -> Schema:
    """Translate the configuration, without what the chart writes."""
    source = Pipeline.model_json_schema(by_alias=True)
    definitions = source.get("$defs", {})
    for name, section in {"Pipeline": source, **definitions}.items():
        written = WRITTEN.get(name, ())
        section["properties"] = {key: each for key, each in section.get("properties", {}).items() if key not in written}
        if "required" in section:
            section["required"] = [each for each in section["required"] if each not in written]
    # What is missing may come from the platform's defaults: the operator says so.
    return {**structural({**source, "required": []}, definitions), "description": "The configuration file."}


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Translate one of pydantic's JSON schemas into a structural schema for Kubernetes."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return structural({**definitions[name], **siblings}, definitions)
    if schema.get(EITHER):
        return {key: deepcopy(schema[key]) for key in (EITHER, "description") if key in schema}
    if "anyOf" in schema:
        return _nullable(schema, definitions)
    if isinstance(schema.get("type"), list) or schema.keys() <= {"description"}:
        return {**ANYTHING, **{key: schema[key] for key in ("description",) if key in schema}}
    if schema.get("type") == "array" and "items" not in schema:
        return {"type": "array", "items": dict(ANYTHING)}
    unknown = schema.keys() - set(KEPT) - DROPPED - TRANSLATED
    if unknown:
        raise InvariantBroken(
            f"the resource's schema has no translation for {', '.join(sorted(unknown))}",
            kept="no definition was made",
            then="handle these keywords in tailrace_operator.crd, or write the field of tailrace.config without them",
        )
    # Copies, so that the YAML of the definition has no anchors.
    made: Schema = {key: deepcopy(schema[key]) for key in KEPT if key in schema}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if "enum" in made and "type" not in made:
        made["type"] = {str: "string", int: "integer"}[type(made["enum"][0])]
    if not made.get("required", True):
        del made["required"]
    if "default" in schema and schema["default"] is not None:
        made["description"] = f"{made.get('description', '')} Default: {schema['default']}.".strip()
    if "items" in schema:
        made["items"] = structural(schema["items"], definitions)
    if "properties" in schema:
        # Kubernetes prunes unlisted properties, so `additionalProperties: false` is not needed, and not allowed.
        made["properties"] = {name: structural(each, definitions) for name, each in schema["properties"].items()}
    elif made.get("type") == "object":
        made |= _free(schema, definitions)
    return made


def _free(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Translate what a map without fixed keys holds."""
    values = schema.get("additionalProperties", {})
    patterns = list(schema.get("patternProperties", {}).values())
    if len(patterns) == 1 and values is False:
        values = patterns[0]  # the operator checks the keys
    if values is False:
        return {}
    return (
        {"additionalProperties": structural(values, definitions)} if values and values is not True else dict(ANYTHING)
    )


def _nullable(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    branches = [each for each in schema["anyOf"] if each.get("type") != "null"]
    if {"type": "string"} in branches and any("$ref" in each for each in branches):  # text that stands for a section
        return dict(ANYTHING)
    if len(branches) != 1 or len(branches) == len(schema["anyOf"]):
        raise InvariantBroken(
            "the resource's schema has a union of more than one type, which Kubernetes cannot express",
            kept="no definition was made",
            then="give the field of tailrace.config one type, or one type and None",
        )
    siblings = {key: value for key, value in schema.items() if key != "anyOf"}
    # Keywords next to the union describe this field; those inside may describe its type.
    return {**structural({**branches[0], **siblings}, definitions), "nullable": True}


def main(values: str) -> None:
    """Print both definitions as YAML."""
    schema = json.loads(Path(values).read_text(encoding="utf-8"))
    made = [crd(schema), operation()]
    sys.stdout.write(yaml.safe_dump_all(made, sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
