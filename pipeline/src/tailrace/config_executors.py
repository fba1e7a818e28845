"""The section `executors`: how many there are to be."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tailrace.section import Seconds, Section


class Executors(Section):
    """How many executors there are, where they are pods: as many as the backlog asks for, between two numbers."""

    min: int = Field(default=1, ge=1, description="Never fewer.")
    max: int | None = Field(
        default=None, ge=1, description="Never more. Left out, the number stays what `spark.executor.instances` says."
    )
    backlog: Seconds = Field(
        default=60.0,
        gt=0,
        description="How long it may take to read what waits. Where it would take longer, there are more executors; "
        "where it takes less than a quarter of that for `settle`, there is one fewer.",
    )
    settle: Seconds = Field(
        default=300.0, gt=0, description="How long it must have been calm before an executor goes: seconds, or 5m."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"executors.max is {self.max}, fewer than executors.min, {self.min}")
        return self
