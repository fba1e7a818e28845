"""The section `process`: the user's function, on DataFrames or on Arrow batches, and what goes with it."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from tailrace.config.section import Section


class Process(Section):
    """What happens to the rows."""

    function: str | None = Field(
        default=None,
        description="The function from DataFrame to DataFrame: `file.py:name` or `package.module:name`; without one, "
        "rows pass as they are.",
    )
    arrow: str | None = Field(
        default=None,
        description="A function from an iterator of Arrow record batches to an iterator of record batches: "
        "`file.py:name` or `package.module:name`; it runs without the JVM.",
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for `function` or `arrow`.")
    validate_: dict[str, str] = Field(
        default_factory=dict,
        alias="validate",
        description="Conditions that a decoded record must meet, as SQL, by name; a record that does not is rejected "
        "with that name.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Spread the records over this many tasks before the function, by key; by default they stay where "
        "they were read.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.arrow is not None and self.function is not None:
            raise ValueError(
                "`function` works on DataFrames and `arrow` on Arrow record batches; a pipeline has one of them"
            )
        if self.arrow is not None and self.partitions is not None:
            raise ValueError("`partitions` is a shuffle, which only Spark can do; leave it out, or use `function`")
        return self
