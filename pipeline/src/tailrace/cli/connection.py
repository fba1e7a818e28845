"""Connection options for commands that can run without a pipeline's file.

Secrets come from a properties file only: everybody on the machine can read a command line, and it stays in the
shell's history.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tailrace.config import SECRET_OPTION, Kafka
from tailrace.errors import ConfigInvalid, OptionRefused

BOOTSTRAP = "bootstrap.servers"

BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap-server", "-b", help="Broker addresses, comma-separated.", metavar="HOST:PORT"),
]
PropertiesOption = Annotated[
    Path | None,
    typer.Option("--config", help="File of Kafka options, one key=value per line; put secrets here."),
]
KafkaOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="Kafka option for the connection; may be repeated.", metavar="KEY=VALUE"),
]


def connection(
    bootstrap: str | None, properties: Path | None, options: Iterable[str] | None, base: Kafka | None = None
) -> Kafka:
    """Merge the pipeline's connection, the properties file, the options and the address; later ones win."""
    given: dict[str, str] = {BOOTSTRAP: base.bootstrap_servers, **base.options} if base else {}
    if properties is not None:
        given |= _properties(properties)
    for option in options or ():
        given |= _option(option)
    if bootstrap is not None:
        given[BOOTSTRAP] = bootstrap
    address = given.pop(BOOTSTRAP, None)
    try:
        kafka = Kafka.checked({"options": given} | ({} if address is None else {"bootstrap_servers": address}))
    except ValidationError as error:
        said = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
        raise OptionRefused(said, kept="nothing was read or written", then="see --help") from None
    if given:
        _checked(kafka)
    return kafka


def _option(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise OptionRefused(
            f"{text!r} is not of the form KEY=VALUE",
            kept="nothing was read or written",
            then="write it as --option security.protocol=SSL",
        )
    if SECRET_OPTION.search(name):
        raise OptionRefused(
            f"{name!r} is a secret, and secrets are not accepted on the command line",
            kept="nothing was read or written",
            then=f"put the line {name}=… into a file that only you can read, and name it with --config FILE",
        )
    return {name.strip(): value.strip()}


def _properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(
            f"--config {path} cannot be read: {error}", kept="nothing was read or written", then="check the path"
        ) from error
    given = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            # The message does not quote the line: it may hold a secret.
            raise ConfigInvalid(
                f"{path}:{number} is not of the form key=value",
                kept="nothing was read or written",
                then="write one option per line, with librdkafka's names",
            )
        given[name.strip()] = value.strip()
    return given


def _checked(kafka: Kafka) -> None:
    """Create a client, so that librdkafka checks the values and the files they name."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from tailrace.kafka.clients import client_options

    try:
        AdminClient(client_options(kafka))
    except KafkaException as error:
        raise OptionRefused(
            f"the Kafka client refuses these options: {error.args[0].str()}",
            kept="nothing was read or written",
            then="correct the option named above",
        ) from error
