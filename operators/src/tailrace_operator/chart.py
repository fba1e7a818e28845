"""The JSON schema of the chart's values: a hand-written part, and a pipeline's `config` from tailrace.config.

A pipeline in the values has the same keys as the configuration file, so that a wrong key fails at `helm install` and
not in a pod. `python -m tailrace_operator.chart HAND-WRITTEN.yaml VALUES.yaml` prints the complete schema.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tailrace.config import CONNECTION_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS, STORE_OPTIONS, Pipeline
from tailrace.version import DOCUMENTATION

Schema = dict[str, Any]

# Keys that the chart itself writes, because other objects have to agree with them; the values must not repeat them.
WRITTEN: dict[str, tuple[str, ...]] = {
    "Pipeline": ("pipeline",),
    "Kafka": ("bootstrap.servers", "options"),
    "Ledger": ("topic", "partitions"),
    "Executors": ("file",),
    "Metrics": ("enabled", "host", "port", "gateways"),
}
OPTIONS = {"Source": SOURCE_OPTIONS, "Sink": SINK_OPTIONS, "Offsets": STORE_OPTIONS}
# YAML parses `true` and `5` as other types where the configuration expects text.
_TEXT: Schema = {"type": ["string", "number", "boolean"]}


def values(written: Schema, defaults: dict[str, Any], name: str = "chart/values.schema.json") -> Schema:
    """Build the complete schema from its hand-written part and the default values; without any, nothing is required."""
    made = {"$id": f"{DOCUMENTATION}{name}", **_required(written, defaults), "$defs": {**written["$defs"], **config()}}
    made["$defs"]["connectionOptions"] = _closed(CONNECTION_OPTIONS)
    return made


def _required(schema: Schema, defaults: dict[str, Any]) -> Schema:
    """Require every value with a default: only null can remove one, and templates rely on it."""
    made = {**schema, "required": sorted(defaults)}
    if "properties" in schema:
        made["properties"] = {
            name: _required(each, defaults[name]) if isinstance(defaults.get(name), dict) and defaults[name] else each
            for name, each in schema["properties"].items()
        }
    return made


def config() -> Schema:
    """Build the definitions of a pipeline's `config`, under that name, and of its sections."""
    schema = Pipeline.model_json_schema(by_alias=True)
    sections = {"Pipeline": schema, **schema.pop("$defs")}
    return {"config" if name == "Pipeline" else name: _section(name, each) for name, each in sections.items()}


def _section(name: str, schema: Schema) -> Schema:
    made = {key: _plain(value) for key, value in schema.items() if key not in {"title", "required"}}
    if "properties" not in made:
        return made
    made["properties"] = {key: each for key, each in made["properties"].items() if key not in WRITTEN.get(name, ())}
    if name in OPTIONS:
        made["properties"]["options"] |= _closed(OPTIONS[name])
    # A pipeline's own values are merged with pipelineDefaults; the templates report what is missing then.
    required = [each for each in schema.get("required", ()) if name != "Pipeline"]
    return {**made, "required": required} if required else made


def _plain(value: Any) -> Any:
    """Drop titles and defaults, and let maps of text accept the types that YAML parses."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {
        key: {name: _plain(each) for name, each in inner.items()} if key == "properties" else _plain(inner)
        for key, inner in value.items()
        if key not in {"title", "default", "x-kubernetes-int-or-string"} or (key == "title" and isinstance(inner, dict))
    }
    if made.get("additionalProperties") == {"type": "string"}:
        made["additionalProperties"] = dict(_TEXT)
    return made


def _closed(names: frozenset[str]) -> Schema:
    allowed = {name: dict(_TEXT) for name in sorted(names)}
    return {"type": "object", "properties": allowed, "additionalProperties": False}


def main(hand_written: str, defaults: str) -> None:
    """Print the schema as JSON."""
    written, given = (yaml.safe_load(Path(file).read_text(encoding="utf-8")) for file in (hand_written, defaults))
    sys.stdout.write(json.dumps(values(written, given), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
