"""The command `tailrace`: finds the command that was asked for, and turns errors into messages and exit codes.

A command's module is imported when the command is called, not before: `tailrace --help` answers at once, and
nothing starts Spark that does not need it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tailrace.cli.terminal import fail, requested, say
from tailrace.errors import TailraceError


@dataclass(frozen=True)
class Command:
    """Where a command is, and what the list of commands says of it."""

    module: str
    name: str  # a function, or a Typer application with commands of its own
    help: str


COMMANDS = {
    "demo": Command("tailrace.cli.demo", "demo", "Show the whole thing: a real Kafka, a pipeline, the proof."),
    "kafka": Command("tailrace.cli.kafka", "kafka", "Start a real Kafka on this machine, to play with."),
    "run": Command("tailrace.cli.run", "run", "Run a pipeline."),
    "status": Command("tailrace.cli.status", "status", "Show what a running pipeline is doing, live."),
    "verify": Command("tailrace.cli.verify", "verify", "Count what is lost or duplicated between two topics."),
    "rejected": Command("tailrace.cli.rejected", "app", "List, show and replay a pipeline's rejected records."),
    "offsets": Command("tailrace.cli.offsets", "app", "Show and change where a pipeline goes on reading."),
    "doctor": Command("tailrace.cli.doctor", "doctor", "Check what a pipeline needs, one line a check."),
    "explain": Command("tailrace.cli.explain", "explain", "Say what an error's code means, and what to do."),
}


def load(name: str) -> Any:
    """Import a command, and return it as the group takes it."""
    command = COMMANDS[name]
    found = getattr(import_module(command.module), command.name)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name)(found)
    return typer.main.get_command(single)


class LazyGroup(TyperGroup):
    """Lists the commands without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in COMMANDS.items():
            self.add_command(TyperCommand(name, help=command.help), name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order in which they are met, not of the alphabet."""
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the command itself in the place of its entry in the list."""
        if args and args[0] in COMMANDS:
            self.add_command(load(args[0]), args[0])
        return super().resolve_command(ctx, args)


# Plain help: drawing boxes around it would take half of the time that it takes.
app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _version(wanted: bool) -> None:
    if wanted:
        from tailrace import __version__

        say(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Kafka to Kafka with PySpark, each record exactly once."""


def with_file(error: TailraceError, arguments: Sequence[str]) -> TailraceError:
    """The error, its next command naming the pipeline's file that this command was given."""
    files = [each for each in arguments if each.endswith((".yaml", ".yml"))]
    if files:
        quoted = shlex.quote(files[0])
        error.then = re.sub(r"\bFILE\b", lambda _: quoted, error.then)
    return error


def main() -> None:
    """The entry of the console script."""
    try:
        try:
            app(prog_name="tailrace")
        except TailraceError as error:
            sys.exit(fail(with_file(error, sys.argv[1:]), requested(sys.argv[1:])))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read us has enough. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main()
