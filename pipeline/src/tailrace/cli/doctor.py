"""`tailrace doctor`: preflight checks, one line each, so that problems show before the pipeline runs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from tailrace.admin.checks import Brokers, Check, State, fail, machine, ok, warn
from tailrace.admin.log_checks import logs
from tailrace.admin.progress_checks import progress
from tailrace.admin.store_checks import store
from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.terminal import Output, OutputOption, done, emit, log_to_stderr, mark, note, say
from tailrace.config import Kafka, Pipeline
from tailrace.config.file import load
from tailrace.errors import ConfigError, TailraceError
from tailrace.spark_stream.storage import on_s3

_COLOURS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The pipeline's configuration.")] = None,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also start Spark, and report whether it plans once or for each batch.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check this machine and, given a FILE or a broker's address, Kafka and the checkpoint.

    Nothing is created or written, except one small object in an s3a checkpoint, which is removed again.
    The exit code is 1 if a check failed; warnings do not count.
    """
    states: Counter[State] = Counter()
    checks: list[Check] = []
    for found in _checks(file, bootstrap, properties, option, plan):
        check = found if file is None else replace(found, hint=_with_file(found.hint, file))
        states[check.state] += 1
        checks.append(check)
        if output is Output.TEXT:
            mark(f"{check.state:<4}", _COLOURS[check.state], f"  {check.name:<17}  {check.found}")
            if check.hint:
                say(f"{'':<6}{'':<19}next: {check.hint}")
    if output is Output.JSON:
        counts = {str(state): states[state] for state in State}
        emit({"checks": [asdict(check) for check in checks], **counts})
    else:
        then = "" if states[State.FAIL] else f"tailrace run {file}" if file else "tailrace doctor FILE"
        done(f"checked: {states[State.OK]} ok, {states[State.WARN]} warn, {states[State.FAIL]} fail", then)
        if file is None and bootstrap is None and properties is None and not states[State.FAIL]:
            note("Kafka was not checked: name a pipeline's FILE, or a broker with -b HOST:PORT")
    if states[State.FAIL]:
        raise typer.Exit(1)


def _checks(
    file: Path | None, bootstrap: str | None, properties: Path | None, option: list[str] | None, plan: bool
) -> Iterator[Check]:
    yield from machine()
    pipeline: Pipeline | None = None
    base: Kafka | None = None
    if file is not None:
        try:
            loaded = load(file)
            pipeline = loaded.pipeline
        except ConfigError as error:
            yield fail("configuration", error.what, error.then)
        else:
            base = pipeline.kafka
            yield ok("configuration", f"{file} is valid, pipeline {pipeline.pipeline}")
            from tailrace.admin.code_checks import code  # imports Spark's classes, which --help should not wait for

            yield from code(pipeline, loaded.folder)
    if base is not None or bootstrap is not None or properties is not None:
        reached = False
        brokers = Brokers(connection(bootstrap, properties, option, base), pipeline)
        for check in brokers.checks():
            reached = reached or (check.name == "broker" and check.state is State.OK)
            yield check
        if pipeline is not None and file is not None and reached and base is not None:
            kafka = connection(bootstrap, properties, option, base)
            reachable = pipeline.model_copy(update={"kafka": kafka})
            yield from logs(reachable)
            yield from progress(reachable, loaded.folder, file)
        if pipeline is not None:
            from tailrace.admin.schema_checks import schemas  # imports Spark's classes too

            yield from schemas(pipeline, loaded.folder, brokers.topics)
    if pipeline is not None and on_s3(pipeline):
        yield from store(pipeline)
    if pipeline is not None and plan:
        yield _planned(pipeline, loaded.folder)


def _with_file(hint: str, file: Path) -> str:
    """Name the file that was given in a hint's command."""
    return re.sub(r"\b(tailrace(?: [a-z]+)+) FILE\b", lambda each: f"{each[1]} {shlex.quote(str(file))}", hint)


def _planned(pipeline: Pipeline, folder: Path) -> Check:
    """Report how a pipeline's batches are planned, and why."""
    if pipeline.checkpoint != "ledger":
        found = "by Spark, for each batch: the pipeline keeps state; Spark was not asked about schema and function"
        return warn("plan", found, "tailrace run FILE, which asks before it reads")
    log_to_stderr()
    from tailrace.startup.run import planning  # brings Spark

    try:
        how, reasons = planning(pipeline, folder)
    except TailraceError as error:
        return fail("plan", error.what, error.then)
    return ok("plan", f"the frame is {how}{': ' if reasons else ''}{', '.join(reasons)}")
