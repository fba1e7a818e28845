"""JSON schemas of Kubernetes' own kinds and of Strimzi's, for kubeconform, made offline.

Those of Kubernetes come from the models of its Python client, which the operator pins; Strimzi's from its definitions.
Both are strict: an unknown field is an error, where the API server would silently drop it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import models

Schema = dict[str, Any]

KINDS = (
    "V1ClusterRole", "V1ClusterRoleBinding", "V1ConfigMap", "V1Deployment", "V1Job", "V1NetworkPolicy", "V1Pod",
    "V1PodDisruptionBudget", "V1Role", "V1RoleBinding", "V1Secret", "V1Service", "V1ServiceAccount", "V1StatefulSet",
)  # fmt: skip
_GROUPS = {
    "Deployment": "apps", "StatefulSet": "apps", "Job": "batch", "NetworkPolicy": "networking",
    "PodDisruptionBudget": "policy", "Role": "rbac", "RoleBinding": "rbac",
    "ClusterRole": "rbac", "ClusterRoleBinding": "rbac",
}  # fmt: skip
_PLAIN: dict[str, Schema] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"}, "bool": {"type": "boolean"},
    "object": {}, "bytes": {"type": "string"}, "datetime": {"type": "string"},
}  # fmt: skip


def write(folder: Path, strimzi: Path | None) -> list[str]:
    """Write the schemas where kubeconform looks for them; return their kinds."""
    kinds = []
    for name in KINDS:
        kind = name.removeprefix("V1")
        group = _GROUPS.get(kind)
        suffix = f"-{group}-v1" if group else "-v1"
        definitions: dict[str, Schema] = {}
        _model(name, definitions)
        schema = {**definitions[name], "definitions": definitions}
        (folder / f"{kind.lower()}{suffix}.json").write_text(json.dumps(schema), encoding="utf-8")
        kinds.append(kind)
    for file in sorted(strimzi.glob("*.yaml")) if strimzi else []:
        definition = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
        kind = definition["names"]["kind"]
        for version in definition["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            name = f"{kind.lower()}-{definition['group'].split('.')[0]}-{version['name']}.json"
            (folder / name).write_text(json.dumps(schema), encoding="utf-8")
        kinds.append(kind)
    return kinds


_CHOICES = ("oneOf", "anyOf", "allOf", "not")


def strict(schema: Any, top: bool = True) -> Any:
    """Return a definition's schema, changed to refuse what the API server would prune."""
    if isinstance(schema, list):
        return [strict(each, False) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A choice names the properties that it is about, not all that exist.
    made = {key: value if key in _CHOICES else strict(value, False) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        if top:  # the API server itself adds these
            for name in ("apiVersion", "kind"):
                made["properties"].setdefault(name, {"type": "string"})
            made["properties"]["metadata"] = {"type": "object"}
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    return made


def _model(name: str, definitions: dict[str, Schema]) -> None:
    if name in definitions:
        return
    made: Schema = {"type": "object", "additionalProperties": False}
    definitions[name] = made
    model = getattr(models, name)
    made["properties"] = {
        model.attribute_map[field]: _type(kind, definitions) for field, kind in model.openapi_types.items()
    }


def _type(kind: str, definitions: dict[str, Schema]) -> Schema:
    if kind in _PLAIN:
        return _PLAIN[kind]
    inner = re.fullmatch(r"(?i:list)\[(.+)\]", kind)
    if inner:
        return {"type": "array", "items": _type(inner[1], definitions)}
    inner = re.fullmatch(r"(?i:dict)[\[(]str, (.+)[\])]", kind)
    if inner:
        return {"type": "object", "additionalProperties": _type(inner[1], definitions)}
    _model(kind, definitions)
    return {"$ref": f"#/definitions/{kind}"}
