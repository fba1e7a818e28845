"""The section `process`: the user's function, on DataFrames or on Arrow batches, and its settings."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from tailrace.config.rules import Rules
from tailrace.config.section import Section


class OnError(StrEnum):
    """What to do with a record at which the function raises."""

    STOP = "stop"
    REJECT = "reject"


class Process(Section):
    """How the rows are processed."""

    function: str | None = Field(
        default=None,
        description="A function from DataFrame to DataFrame: `file.py:name` or `package.module:name`. Without a "
        "function, rows pass unchanged.",
    )
    arrow: str | None = Field(
        default=None,
        description="A function from an iterator of Arrow record batches to an iterator of record batches: "
        "`file.py:name` or `package.module:name`; it runs without the JVM.",
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for `function` or `arrow`.")
    validate_: Rules = Field(
        default_factory=dict,
        alias="validate",
        description="Named rules that a decoded record must satisfy, in the order in which they are checked. A rule is "
        "an SQL condition, or a mapping with a severity; a record that breaks a rule is rejected with the rule's name "
        "as the reason, unless its severity is `warn`.",
    )
    on_error: OnError = Field(
        default=OnError.STOP,
        description="`stop`: a record at which the function raises stops the pipeline, with its offset in the error. "
        "`reject`: it goes to the rejected topic; not with a function that shuffles, nor with a checkpoint folder.",
    )
    max_errors: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="With `on_error: reject`, the most records of one batch that are rejected because the function "
        "raised; if there are more, the function is at fault, and the pipeline stops.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Shuffle the records by key into this many tasks before the function; by default they stay in the "
        "task that read them.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.arrow is not None and self.function is not None:
            raise ValueError(
                "`function` works on DataFrames and `arrow` on Arrow record batches; a pipeline takes only one of them"
            )
        if self.arrow is not None and self.partitions is not None:
            raise ValueError("`partitions` is a shuffle, which only Spark can do; leave it out, or use `function`")
        if self.on_error is OnError.REJECT and self.partitions is not None:
            raise ValueError(
                "`on_error: reject` cannot be combined with `partitions`: behind a shuffle, rejected records are "
                "committed before the function has seen its rows"
            )
        return self
