"""The doctor's checks of a pipeline's own files: schemas and functions are loaded as a start would, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tailrace.admin.checks import Check, fail, ok, warn
from tailrace.config import Format, Pipeline
from tailrace.errors import SchemaInvalid, TailraceError
from tailrace.stages.arrow_function import Shipped
from tailrace.stages.arrow_stages import conditions, decoded_schema
from tailrace.stages.condition_values import unknown_column
from tailrace.stages.formats.known import sink_format, source_format
from tailrace.stages.process import accepts, load


def code(pipeline: Pipeline, folder: Path) -> Iterator[Check]:
    """Run each check in turn; relative paths start from `folder`."""
    if pipeline.source.format != Format.RAW:
        yield _source(pipeline, folder)
    if pipeline.sink.format not in (Format.RAW, Format.JSON):
        yield _sink(pipeline, folder)
    if pipeline.process.validate_:
        yield _rules(pipeline, folder)
    if pipeline.process.function is not None or pipeline.process.arrow is not None:
        yield _function(pipeline, folder)


def _source(pipeline: Pipeline, folder: Path) -> Check:
    source = pipeline.source
    try:
        made = source_format(source, folder, jvm=False)
    except SchemaInvalid as error:
        written = " " in (source.schema_ or "") and source.format == Format.JSON
        if written and pipeline.process.arrow is None:  # Spark's parser decides about that
            then = "tailrace doctor FILE --plan" if pipeline.checkpoint == "ledger" else "tailrace run FILE"
            return warn("source schema", f"only Spark can tell: {error.what}", then)
        return fail("source schema", error.what, error.then)
    except TailraceError as error:
        return fail("source schema", error.what, error.then)
    fields = len(made.fields) if made.fields is not None else 0
    return ok("source schema", f"{source.format} with {fields} field{'' if fields == 1 else 's'}")


def _sink(pipeline: Pipeline, folder: Path) -> Check:
    try:
        sink_format(pipeline.sink, folder)
    except TailraceError as error:
        return fail("sink schema", error.what, error.then)
    return ok("sink schema", f"{pipeline.sink.format}, {pipeline.sink.schema_ or 'no file'}")


def _rules(pipeline: Pipeline, folder: Path) -> Check:
    rules = pipeline.process.validate_
    what = f"{len(rules)} rule{'' if len(rules) == 1 else 's'}"
    try:
        fields = source_format(pipeline.source, folder, jvm=False).fields
    except TailraceError:
        return warn("rules", f"{what}; the source schema tells which fields they have", "correct the source schema")
    if pipeline.process.arrow is not None:
        try:
            conditions(rules, fields)
        except TailraceError as error:
            return fail("rules", error.what, error.then)
    schema = decoded_schema(fields)
    for name, rule in rules.items():
        wrong = unknown_column(rule.condition, schema)
        if wrong:
            return fail("rules", f"process.validate.{name}: {wrong}", "correct the condition, or the source schema")
    severities = Counter(rule.severity.value for rule in rules.values())
    return ok("rules", ", ".join(f"{number} {severity}" for severity, number in sorted(severities.items())))


def _function(pipeline: Pipeline, folder: Path) -> Check:
    process = pipeline.process
    reference = process.function or process.arrow or ""
    try:
        if process.arrow is not None:
            Shipped.of(process.arrow, folder, process.arguments)
        else:
            accepts(load(reference, folder).call, reference, process.arguments, "one DataFrame")
    except TailraceError as error:
        return fail("function", error.what, error.then)
    # A column that does not exist, for example, is found only where Spark has called the function.
    tries = process.function is not None and pipeline.checkpoint == "ledger"
    return ok("function", f"{reference} loads" + ("; --plan also tries it in Spark" if tries else ""))
