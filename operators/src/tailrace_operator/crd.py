"""The CustomResourceDefinition of `pipelines.tailrace.dev`, derived from the configuration's schema.

A Pipeline resource has the same keys as the configuration file, so its schema is translated, not written twice:
Kubernetes requires a structural schema, without references and without unions.
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

# Schema keywords that mean the same to Kubernetes.
KEPT = (
    "type", "description", "enum", "format", "pattern",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "minItems", "maxItems", "required",
)  # fmt: skip
# Keywords omitted from a structural schema. Defaults are left to the running code: the API server would write today's
# defaults into every resource, where no later version could change them.
DROPPED = {"title", "default", "$defs"}
# A number, or text with a unit: the only union Kubernetes supports. Its number is an integer; 0.5 is written 500ms.
EITHER = "x-kubernetes-int-or-string"
# Keywords translated below.
TRANSLATED = {"$ref", "anyOf", "const", "properties", "additionalProperties", "items"}

STATUS: Schema = {
    "type": "object",
    "description": "What the operator observed; only the operator writes here.",
    "properties": {
        "observedGeneration": {
            "type": "integer",
            "format": "int64",
            "description": "The generation of the spec that this status describes.",
        },
        "phase": {"type": "string", "description": "The pipeline's phase, in one word."},
        "lag": {
            "type": "integer",
            "format": "int64",
            "description": "Records in the source topics not yet delivered.",
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
    """Build the complete definition for the API server."""
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
    """Translate one of pydantic's JSON schemas into a structural schema for Kubernetes."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return structural({**definitions[name], **siblings}, definitions)
    if schema.get(EITHER):
        return {key: deepcopy(schema[key]) for key in (EITHER, "description") if key in schema}
    if "anyOf" in schema:
        return _nullable(schema, definitions)
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
    if "default" in schema and schema["default"] is not None:
        made["description"] = f"{made.get('description', '')} Default: {schema['default']}.".strip()
    if "items" in schema:
        made["items"] = structural(schema["items"], definitions)
    if "properties" in schema:
        # Kubernetes prunes unlisted properties, so `additionalProperties: false` is not needed, and not allowed.
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
    siblings = {key: value for key, value in schema.items() if key != "anyOf"}
    # Keywords next to the union describe this field; those inside may describe its type.
    return {**structural({**branches[0], **siblings}, definitions), "nullable": True}


def main() -> None:
    """Print the definition as YAML."""
    sys.stdout.write(yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    main()
