"""The base class and the types shared by every section of the schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from tailrace.config import units


def _written(read: Callable[[str], float | None], kind: str) -> Callable[[object], object]:
    """Return a validator that reads text with a unit as a number; other values are left to the schema."""

    def validate(value: object) -> object:
        if not isinstance(value, str):
            return value
        found = read(value)
        if found is None:
            raise PydanticCustomError(f"not_a_{kind}", f"not a {kind}")
        return found

    return validate


def _or_text(number: str) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": number}, {"type": "string"}], "x-kubernetes-int-or-string": True})


Seconds = Annotated[float, BeforeValidator(_written(units.seconds, "time")), _or_text("number")]
Bytes = Annotated[int, BeforeValidator(_written(units.size, "size")), _or_text("integer")]


class Section(BaseModel):
    """Base class of all sections: no unknown keys, no change after validation."""

    # Pydantic's own message would show its input, passwords included.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: object, info: ValidationInfo) -> object:
        # Python counts true as 1, and YAML reads `yes` as true.
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in {int, int | None, float, float | None}:
            raise ValueError("takes a number, not true or false")
        return value
