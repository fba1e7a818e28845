"""The rules of `process.validate`: what a decoded record must satisfy, and what happens if it does not.

A rule is written as its condition alone, which rejects, or with a severity of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tailrace.config.section import Section

MINIMUM = 20  # records that break a rule before it can stop the pipeline, unless the rule says otherwise


class Severity(StrEnum):
    """What happens to a record that breaks a rule."""

    REJECT = "reject"
    WARN = "warn"
    STOP = "stop"


class Rule(Section):
    """A condition on decoded records, and what happens to a record that breaks it."""

    condition: str = Field(
        min_length=1,
        description="An SQL condition over the decoded fields and `kafka`; a record for which it is false or null "
        "breaks the rule.",
    )
    severity: Severity = Field(
        default=Severity.REJECT,
        description="`reject`: a record that breaks the rule goes to the rejected topic, with the rule's name as the "
        "reason. `warn`: it is written, and counted. `stop`: it is rejected, and the pipeline stops before it "
        "delivers a batch in which too many records break the rule.",
    )
    ratio: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="With `severity: stop`, the largest share of a batch's checked records that may break the rule: "
        "0.05 is one in twenty, and 1 never stops.",
    )
    minimum: int | None = Field(
        default=None,
        ge=1,
        description="With `severity: stop`, the least number of records of one batch that must break the rule to stop "
        f"the pipeline; {MINIMUM} if not set.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.severity is Severity.STOP and self.ratio is None:
            raise ValueError("`severity: stop` needs a `ratio`, the share of a batch's records that may break the rule")
        for name in ("ratio", "minimum"):
            if self.severity is not Severity.STOP and getattr(self, name) is not None:
                raise ValueError(f"`{name}` goes with `severity: stop`; this rule has `severity: {self.severity}`")
        return self

    @property
    def rejects(self) -> bool:
        """Whether a record that breaks the rule is rejected."""
        return self.severity is not Severity.WARN


class _OrText:
    """Describes a rule in JSON Schema as text or a mapping."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


def _written(value: Any) -> Any:
    """Take a condition alone for a rule that rejects."""
    if isinstance(value, str):
        return {"condition": value}
    if not isinstance(value, Mapping | Rule):
        raise ValueError("takes an SQL condition in quotes, or a mapping with a `condition`")
    return value


Rules = dict[str, Annotated[Rule, BeforeValidator(_written), _OrText()]]
