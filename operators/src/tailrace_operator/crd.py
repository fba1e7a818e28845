"""The CustomResourceDefinition of `pipelines.tailrace.dev`, derived from the configuration's schema.

A Pipeline resource says what the configuration file says, in the same words, so its schema is not written a second
time but translated: Kubernetes wants it structural, without references and without unions.
`python -m tailrace_operator.crd` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import yaml

from tailrace.config import Pipeline
from tailrace.errors import InvariantBroken

GROUP = "tailrace.dev"
VERSION = "v1alpha1"
KIND = "Pipeline"
PLURAL = "pipelines"
SHORT_NAME = "tp"

Schema = dict[str, Any]

# Keywords of a schema that mean the same to Kubernetes.
KEPT = (
    "type", "description", "enum", "format", "pattern",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "required",
)  # fmt: skip
# Keywords that need no place in a structural schema. Defaults are left to the code that runs: the API server would
# write today's into every resource, where no later version could change them.
DROPPED = {"title", "default", "$defs"}
# A number or text with a unit: the one union that Kubernetes knows. Its number is a whole one; 0.5 is written 500ms.
EITHER = "x-kubernetes-int-or-string"
# Keywords that are translated below.
TRANSLATED = {"$ref", "anyOf", "const", "properties", "additionalProperties", "items"}

STATUS: Schema = {
    "type": "object",
    "description": "What the operator observed; it alone writes here.",
    "properties": {
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "description": "The generation of the spec that this status is about.",
        },
        "phase": {"type": "string", "description": "Where the pipeline is in its life, in one word."},
        "lag": {
            "type": "integer",
            "format": "int64",
            "description": "Records in the source topics that are not yet delivered.",
        },
    },
    "x-kubernetes-preserve-unknown-fields": True,
}

COLUMNS: list[Schema] = [
    {"name": "Pipeline", "type": "string", "jsonPath": ".spec.pipeline", "description": "The pipeline's name."},
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Lag", "type": "integer", "jsonPath": ".status.lag", "description": "Records not yet delivered."},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]


def crd() -> Schema:
    """The whole definition, as the API server takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": deepcopy(COLUMNS),
                    "schema": {"openAPIV3Schema": _resource()},
                }
            ],
        },
    }


def _resource() -> Schema:
    source = Pipeline.model_json_schema(by_alias=True)
    return {
        "type": "object",
        "description": "A Tailrace pipeline: a source, decode → process → encode, a sink.",
        "required": ["spec"],
        "properties": {"spec": structural(source, source.get("$defs", {})), "status": deepcopy(STATUS)},
    }


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """A JSON schema of pydantic's as a structural schema of Kubernetes'."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return structural({**definitions[name], **beside}, definitions)
    if schema.get(EITHER):
        return {key: deepcopy(schema[key]) for key in (EITHER, "description") if key in schema}
    if "anyOf" in schema:
        return _nullable(schema, definitions)
    untold = schema.keys() - set(KEPT) - DROPPED - TRANSLATED
    if untold:
        raise InvariantBroken(
            f"the resource's schema has no translation for {', '.join(sorted(untold))}",
            kept="no definition was made",
            then="teach tailrace_operator.crd these keywords, or write the field of tailrace.config without them",
        )
    # Copies, so that the YAML of the definition has no anchors.
    made: Schema = {key: deepcopy(schema[key]) for key in KEPT if key in schema}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if "default" in schema and schema["default"] is not None:
        made["description"] = f"{made.get('description', '')} Default: {schema['default']}.".strip()
    if "items" in schema:
        made["items"] = structural(schema["items"], definitions)
    if "properties" in schema:
        # Kubernetes prunes what is not here, so `additionalProperties: false` need not and must not be said.
        made["properties"] = {name: structural(each, definitions) for name, each in schema["properties"].items()}
    else:
        made |= _free(schema.get("additionalProperties"), definitions)
    return made


def _free(values: object, definitions: Mapping[str, Any]) -> Schema:
    if values is True or values == {}:
        return {"x-kubernetes-preserve-unknown-fields": True}
    return {"additionalProperties": structural(values, definitions)} if isinstance(values, Mapping) else {}


def _nullable(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    branches = [each for each in schema["anyOf"] if each.get("type") != "null"]
    if len(branches) != 1 or len(branches) == len(schema["anyOf"]):
        raise InvariantBroken(
            "the resource's schema has a union of more than one type, which Kubernetes cannot express",
            kept="no definition was made",
            then="give the field of tailrace.config one type, or one type and None",
        )
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    # What is said beside the union is about this field; what is said inside may be about its type.
    return {**structural({**branches[0], **beside}, definitions), "nullable": True}


def main() -> None:
    """Print the definition as YAML."""
    sys.stdout.write(yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    main()
