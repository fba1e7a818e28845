"""A pipeline with its function loaded, and digests of the settings and code that determine its rows.

The digests are of the files as they were loaded: a file that changes while a process runs changes nothing of what the
process does, and a plan must name the code that delivers it. A start with files that were edited after the process had
imported them is refused.

Each stage between source and sink is a pure function from DataFrame to DataFrame: `driver.frame` combines the stages
for stateless pipelines, `spark_stream.frame` for stateful ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tailrace.config import ISOLATION, Pipeline
from tailrace.stages.formats.json_model import REFERENCE
from tailrace.stages.formats.known import refuse_edited, source_kind
from tailrace.stages.module_sources import sources
from tailrace.stages.process import Function
from tailrace.stages.session_settings import of_session


@dataclass(frozen=True)
class Assembly:
    """A pipeline with its function loaded; its relative paths start from `folder`."""

    pipeline: Pipeline
    function: Function | None
    folder: Path
    spark: SparkSession | None = None  # the session that evaluates it
    rules: str = field(
        init=False
    )  # a digest of the settings that decide which records are rejected before the function
    code: str = field(init=False)  # a digest of the function's code and arguments

    def __post_init__(self) -> None:
        refuse_edited(self.pipeline, self.folder)
        object.__setattr__(self, "rules", self._rules())
        object.__setattr__(self, "code", self._code())

    def _rules(self) -> str:
        source, process = self.pipeline.source, self.pipeline.process
        schema = source.schema_ or ""
        if REFERENCE.fullmatch(schema):
            texts = [each.read_text() for each in sources(schema, self.folder)]
            text = texts[0] if len(texts) == 1 else repr(texts)
        else:
            file = self.folder / schema
            text = file.read_text() if schema.endswith((".json", ".avsc")) and file.is_file() else ""
        format_ = f"{source.format}{'' if source.registry is None else ' of a registry'}"
        own = [each.read_text() for each in sources(source.format, self.folder)] if ":" in source.format else []
        return _digest(format_, schema, text, self._verdicts, process.partitions, *own)

    @property
    def _verdicts(self) -> list[tuple[str, str]]:
        """Return the rules that reject; what only warns, or when a rule stops, changes no record's verdict."""
        return sorted((name, rule.condition) for name, rule in self.pipeline.process.validate_.items() if rule.rejects)

    def _code(self) -> str:
        process = self.pipeline.process
        files = list(self.function.files) if self.function is not None else []
        files += [each for each in sources(process.function or "", self.folder) if each not in files]
        texts = [each.read_text() for each in files if each.is_file()]
        return _digest(
            (process.function or "").rpartition(":")[2],
            texts,
            json.dumps(process.arguments, sort_keys=True, default=str),
        )

    @property
    def settings(self) -> Mapping[str, str]:
        """Return what else may decide which rows there are: the isolation, and settings of the session if there is one.

        They are those of now: the function, which is called first, may set some itself.
        """
        own = {ISOLATION: self.pipeline.source.isolation.value}
        return own if self.spark is None else own | of_session(self.spark)

    @property
    def may_reject(self) -> bool:
        """Return whether a record can be rejected before the function: raw bytes without conditions cannot."""
        return source_kind(self.pipeline.source).may_reject or bool(self.pipeline.process.validate_)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
