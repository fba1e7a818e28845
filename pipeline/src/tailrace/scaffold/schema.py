"""The JSON Schema of a pipeline's file: editors complete and check by it."""

from __future__ import annotations

from typing import Any

from tailrace.config import Pipeline
from tailrace.version import DOCUMENTATION

TITLE = "A Tailrace pipeline"
# A value may be taken from the environment where the file is read, so any text may stand for a number or a choice.
_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}


def schema() -> dict[str, Any]:
    """Return the schema, in the draft that Python's and most editors' validators know."""
    made = Pipeline.model_json_schema(by_alias=True)
    made["$id"] = f"{DOCUMENTATION}reference/pipeline.schema.json"
    made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    made["title"] = TITLE
    return _with_variables(made)  # type: ignore[no-any-return]


def _with_variables(part: Any) -> Any:
    """Allow ${NAME} wherever a number, a choice or a switch is asked for; leave out titles, which repeat the keys."""
    if isinstance(part, list):
        return [_with_variables(each) for each in part]
    if not isinstance(part, dict):
        return part
    found = {key: _with_variables(value) for key, value in part.items() if key != "title" or value == TITLE}
    if found.get("type") in ("integer", "number", "boolean") or "enum" in found:
        kept = {key: found.pop(key) for key in ("description", "default") if key in found}
        return {**kept, "anyOf": [found, _VARIABLE]}
    return found
