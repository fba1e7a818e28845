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

SHORT_NAMES = ["tailrace", "tlr"]
CATEGORY = "streaming"
KEPT_BY_HELM = {"helm.sh/resource-policy": "keep"}  # to remove the definition is to delete every Pipeline

Schema = dict[str, Any]

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
ANYTHING: Schema = {"x-kubernetes-preserve-unknown-fields": True}

# Keys of a spec that the chart's entry does not have, and those that it has and a Pipeline has otherwise.
SWITCHES: Schema = {
    "suspend": {
        "type": "boolean",
        "description": "Let no driver run. Offsets, topics and the user stay; the pipeline goes on where it was.",
    },
    "paused": {"type": "boolean", "description": "Let the operator change nothing; what runs goes on."},
}
OTHERWISE = {"name", "enabled"}
RULES: list[Schema] = [
    {
        "rule": "!has(self.upgrade) || self.upgrade != 'drain' || !has(self.driver) || !has(self.driver.standbys) "
        "|| self.driver.standbys == 0",
        "message": "with upgrade drain no driver waits beside another: driver.standbys must be 0",
    },
    {
        "rule": "has(self.config.source) && (has(self.config.source.topics) || has(self.config.source.pattern))",
        "message": "config.source needs topics, or a pattern",
    },
]


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _number(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description}


_CONDITION: Schema = {
    "type": "object",
    "required": ["type", "status", "reason", "lastTransitionTime"],
    "properties": {
        "type": _text("What it is about."),
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": _text("Why, in a word of docs/operator.md."),
        "message": _text("Why, with values."),
        "observedGeneration": _number("The generation of the spec that it describes."),
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}

STATUS: Schema = {
    "type": "object",
    "description": "What the operator observed; only the operator writes here.",
    "properties": {
        "observedGeneration": _number("The generation of the spec that this status describes."),
        "phase": _text("The pipeline's state in a word."),
        "revision": _text("The revision that the spec asks for."),
        "running": _text("The revision that drivers are made of."),
        "lastStable": _text("The newest revision that was seen to work, and to which a failed one goes back."),
        "drivers": _number("Drivers' pods, those that wait for their turn included."),
        "lag": _number("Records in the source topics not yet delivered."),
        "rates": {"type": "object", "description": "Records per second.", "additionalProperties": {"type": "number"}},
        "lastBatch": {"type": "object", "description": "The batch that was delivered last.", **ANYTHING},
        "lastError": {
            "type": "object",
            "description": "Why the newest driver is not ready.",
            "properties": {
                "driver": _text("Its pod."),
                "code": _text("The code of its error, for `tailrace explain`."),
                "message": _text("Its last words."),
            },
        },
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "history": {
            "type": "array",
            "description": "The last revisions, oldest first.",
            "items": {"type": "object", **ANYTHING},
        },
    },
}

COLUMNS: list[Schema] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    {"name": "Revision", "type": "string", "jsonPath": ".status.running"},
    {"name": "Lag", "type": "integer", "jsonPath": ".status.lag", "description": "Records not yet delivered."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Error", "type": "string", "jsonPath": ".status.lastError.code"},
]


OPERATION_SCHEMA: Schema = {
    "type": "object",
    "description": "A command of `tailrace` that runs once for a Pipeline; what moves offsets runs while it rests.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["pipeline", "run"],
            "properties": {
                "pipeline": {"type": "string", "minLength": 1, "description": "The Pipeline's name."},
                "run": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 50,
                    "items": {"type": "string", "maxLength": 1000},
                    "description": "The command, without the file: [offsets, rewind, --to-time, 2026-11-20T10:00:00Z].",
                },
            },
            "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "an operation runs once: make another one"},
                {"rule": "self.run[0] in ['offsets', 'rejected']", "message": "run begins with offsets or rejected"},
            ],
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string", "enum": ["Waiting", "Running", "Succeeded", "Failed"]},
                "message": _text("Why it waits, where its output is, or why it failed."),
                "started": {"type": "string", "format": "date-time"},
                "finished": {"type": "string", "format": "date-time"},
            },
        },
    },
}

OPERATION_COLUMNS: list[Schema] = [
    {"name": "Pipeline", "type": "string", "jsonPath": ".spec.pipeline"},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Run", "type": "string", "jsonPath": ".spec.run"},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
]


def crd(values: Schema) -> Schema:
    """Build the definition of the Pipeline; `values` is the schema of the chart's values."""
    return _definition(KIND, PLURAL, SHORT_NAMES, COLUMNS, _resource(values))


def operation() -> Schema:
    """Build the definition of the PipelineOperation."""
    return _definition(OPERATION, OPERATIONS, ["tlrop"], OPERATION_COLUMNS, deepcopy(OPERATION_SCHEMA))


def _definition(kind: str, plural: str, short: list[str], columns: list[Schema], schema: Schema) -> Schema:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "annotations": dict(KEPT_BY_HELM)},
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
                    "subresources": {"status": {}},
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
