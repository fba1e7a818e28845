"""The base class and the types shared by every section of the schema.

A wrong section made in Python raises ConfigInvalid, in the words of the command line: by calling its class, and by
`model_validate`. `checked` leaves pydantic's error to a caller that knows the line of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from tailrace.config import units

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


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


class _Called(ModelMetaclass):
    """The class of sections. Pydantic makes the sections within one without calling them, so it collects all faults."""

    def __call__(self, *arguments: Any, **values: Any) -> Any:
        """Make a section; raise ConfigInvalid if it is wrong."""
        try:
            return super().__call__(*arguments, **values)
        except ValidationError as error:
            raise _refusal(self, error, values) from None


def _refusal(section: Any, error: ValidationError, given: object) -> Exception:
    from tailrace.config.file.problems import refusal  # it needs the sections

    return refusal(error, given, section)


class Section(BaseModel, metaclass=_Called):
    """Base class of all sections: no unknown keys, no change after validation."""

    # Pydantic's own message would show its input, passwords included.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate a mapping; raise ConfigInvalid if it is wrong."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise _refusal(cls, error, obj) from None

    @classmethod
    def checked(cls, obj: Any) -> Self:
        """Validate a mapping; raise pydantic's error if it is wrong."""
        return super().model_validate(obj)

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: object, info: ValidationInfo) -> object:
        # Python counts true as 1, and YAML reads `yes` as true.
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in {int, int | None, float, float | None}:
            raise ValueError("takes a number, not true or false")
        return value
