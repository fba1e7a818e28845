"""The console script `tailrace`: dispatches to a command, and turns errors into messages and exit codes.

A command's module is imported only when the command is called: `tailrace --help` answers at once, and only commands
that need Spark start it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tailrace.cli.terminal import Output, ReaderGone, be_quiet, chosen, fail, requested, say
from tailrace.errors import ConfigInvalid, OptionRefused, TailraceError


@dataclass(frozen=True)
class Command:
    """Where a command is, and its line in the list of commands."""

    module: str
    name: str  # a function, or a Typer application with commands of its own
    help: str
    package: str = ""  # the package that adds it


_ALL = {
    "init": Command("tailrace.cli.init", "init", "Write a new pipeline that works."),
    "dev": Command("tailrace.cli.dev", "dev", "Run a pipeline beside your editor, on its own Kafka."),
    "preview": Command("tailrace.cli.preview", "preview", "Show what a pipeline makes of records; write nothing."),
    "demo": Command("tailrace.cli.demo", "demo", "Show exactly once: a real Kafka, a pipeline, the proof."),
    "kafka": Command("tailrace.cli.kafka", "app", "Run a real Kafka on this machine, to try things with."),
    "run": Command("tailrace.cli.run", "run", "Run a pipeline."),
    "status": Command("tailrace.cli.status", "status", "Show what a running pipeline is doing, live."),
    "verify": Command("tailrace.cli.verify", "verify", "Count the records lost or duplicated between two topics."),
    "rejected": Command("tailrace.cli.rejected", "app", "List, show and replay a pipeline's rejected records."),
    "offsets": Command("tailrace.cli.offsets", "app", "Show and change where a pipeline continues reading."),
    "backfill": Command("tailrace.cli.backfill", "backfill", "Read a range of the past again, into another topic."),
    "shadow": Command("tailrace.cli.shadow", "app", "Compare a changed pipeline with the live one."),
    "doctor": Command("tailrace.cli.doctor", "doctor", "Check what a pipeline needs, one line per check."),
    "handover": Command("tailrace.cli.handover", "handover", "Wait for the pod that replaces this one."),
    "pipelines": Command("tailrace.cli.pipelines", "app", "Show and steer Pipelines on Kubernetes."),
    "schema": Command("tailrace.cli.init", "schema", "Print the JSON Schema of a pipeline's file."),
    "explain": Command("tailrace.cli.explain", "explain", "Explain an error code, or a key of the file."),
    "completion": Command("tailrace.cli.completion", "completion", "Print what completes commands in a shell."),
}
# Another package adds a command with an entry point of this group, `name = "package.module:function"`.
_GROUP = "tailrace.commands"
_WRONG_USE: Any = typer.BadParameter.__bases__[0]  # of click, of which newer versions of Typer have a copy
COMPLETING = "_TAILRACE_COMPLETE"  # set by the scripts of `tailrace completion`; the framework answers and exits


def _commands() -> dict[str, Command]:
    """Return all commands by name: those of this package first."""
    # Images leave out the demo and the Kafka for tests, and with them these commands.
    found = {name: command for name, command in _ALL.items() if find_spec(command.module) is not None}
    for each in entry_points(group=_GROUP):
        package = each.dist.name if each.dist is not None else each.module
        found.setdefault(each.name, Command(each.module, each.attr, f"From the package {package}.", package))
    return found


COMMANDS = _commands()


def load(name: str) -> Any:
    """Import a command, and return it in the form the group expects."""
    command = COMMANDS[name]
    try:
        found = getattr(import_module(command.module), command.name)
    except Exception as error:  # another package may raise anything
        if not command.package:
            raise
        raise ConfigInvalid(
            f"the command {name} of the package {command.package} cannot be loaded: {type(error).__name__}: {error}",
            kept="nothing was done",
            then=f"mend or remove the package {command.package}",
        ) from error
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        for each in _runnable(group):
            each.params.append(_quiet())
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(found)
    alone = typer.main.get_command(single)
    alone.params.append(_quiet())
    return alone


def _runnable(command: Any) -> Iterator[Any]:
    """Yield the commands that do something: those of a group, and a group that also runs by itself."""
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield command
    for each in inner.values():
        yield from _runnable(each)


def _quiet() -> Any:
    """Return the option that every command has; the framework makes options only for a function's parameters."""

    def bearer(
        quiet: Annotated[
            bool,
            typer.Option("--quiet", "-q", callback=be_quiet, help="Write no progress and no advice, only results."),
        ] = False,
    ) -> None:
        """Bear the option."""

    single = typer.Typer(add_completion=False)
    single.command()(bearer)
    option = next(each for each in typer.main.get_command(single).params if each.name == "quiet")
    option.expose_value = False  # commands do not take it as a parameter
    return option


class LazyGroup(TyperGroup):
    """Lists the commands without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, help=command.help), name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order a user meets them, not alphabetically."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the command's placeholder with the command itself."""
        if args and args[0] in COMMANDS:
            self.add_command(load(args[0]), args[0])
        return super().resolve_command(ctx, args)


# Plain help: drawing boxes would take half of its run time.
app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,  # `tailrace completion` prints the scripts, and installs nothing
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},  # commands inherit it
)


def _version(wanted: bool) -> None:
    if wanted:
        from tailrace import __version__

        say(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kafka to Kafka with PySpark, each record exactly once."""


def with_file(error: TailraceError, arguments: Sequence[str]) -> TailraceError:
    """Return the error, with this command's pipeline file in place of FILE in its next command."""
    files = [each for each in arguments if each.endswith((".yaml", ".yml"))]
    if files:
        quoted = shlex.quote(files[0])
        error.then = re.sub(r"\bFILE\b", lambda _: quoted, error.then)
    return error


def _run(output: Output) -> None:
    """Run the command; for a program, a usage error is an object as any other."""
    if output is Output.TEXT:
        app(prog_name="tailrace")
        return
    try:
        code = app(prog_name="tailrace", standalone_mode=False)
    except _WRONG_USE as error:
        place = error.ctx.command_path if error.ctx is not None else "tailrace"
        raise OptionRefused(error.format_message(), kept="nothing was done", then=f"{place} --help") from error
    except typer.Abort:
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def main() -> None:
    """Run the console script."""
    if COMPLETING in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a result with a character that the terminal lacks is still one
            stream.reconfigure(errors="backslashreplace")
    try:
        output = chosen(requested(sys.argv[1:]))
        try:
            _run(output)
        except TailraceError as error:
            sys.exit(fail(with_file(error, sys.argv[1:]), output))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (BrokenPipeError, ReaderGone):
        # The reader has closed the pipe. Python would complain again at its final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main()
