"""A command and an error as a package of a user's would add them, with the entry points next to this module."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.errors import ConfigError


class GreetingMissing(ConfigError):
    """There is nobody to greet.

    Give a name: `tailrace hello NAME`.
    """

    code = "OWN-101"
    title = "greeting missing"
    usual = "tailrace hello NAME"


def hello(name: Annotated[str, typer.Argument(help="Whom to greet.")] = "") -> None:
    """Greet somebody."""
    if not name:
        raise GreetingMissing("no name was given", kept="nothing was done")
    typer.echo(f"hello, {name}")
