"""The topic that `tailrace kafka produce` and `consume` are to use, from the words of the command line.

A pipeline's FILE gives the connection, the topics and how the values are written; an address and a TOPIC do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.terminal import note
from tailrace.config import Format, Kafka, Pipeline, Sink, Source
from tailrace.config.file import load
from tailrace.errors import OptionRefused

_UNTOUCHED = "nothing was read or written"

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE|TOPIC", help="The pipeline's configuration, and the topic if it is another."),
]
TopicOption = Annotated[
    str | None, typer.Option("--topic", "-t", help="Deprecated, ends with 0.3: pass the topic as an argument.")
]
SchemaOption = Annotated[
    Path | None,
    typer.Option("--value-schema", metavar="FILE", help="The values are Avro with the schema in this .avsc file."),
]


@dataclass(frozen=True)
class Place:
    """A topic, its brokers, and the pipeline that names them, if there is one."""

    kafka: Kafka
    topic: str
    pipeline: Pipeline | None
    folder: Path
    file: str = ""  # of the pipeline, as it was given

    @property
    def format(self) -> Source | Sink | None:
        """The settings by which the topic's values are written; None if the file does not say."""
        if self.pipeline is None:
            return None
        if self.topic in self.pipeline.sink.named:
            return self.pipeline.sink
        return self.pipeline.source if self.topic in self.pipeline.source.topics else None

    @property
    def avro(self) -> bool:
        """Whether the file says that the values are Avro."""
        return self.format is not None and self.format.format == Format.AVRO


def parsed(words: Iterable[str], topic: str | None) -> tuple[Path | None, str | None]:
    """Return the FILE and the TOPIC among the arguments; `topic` is what the deprecated option names."""
    given = list(words)
    files = [each for each in given if each.endswith((".yaml", ".yml"))]
    topics = [each for each in given if each not in files]
    if topic is not None:
        note(f"warning: -t is deprecated and ends with 0.3; pass the topic as an argument: {topic}")
        topics.append(topic)
    for several, what in ((files, "FILE"), (topics, "TOPIC")):
        if len(several) > 1:
            raise OptionRefused(
                f"{several[1]!r} is a second {what}", kept=_UNTOUCHED, then=f"pass one {what} at a time"
            )
    return (Path(files[0]) if files else None), (topics[0] if topics else None)


def place(
    words: Iterable[str] | None,
    topic: str | None,
    usual: Callable[[Pipeline], Iterable[str]],
    kafka: Callable[[Kafka | None], Kafka],
) -> Place:
    """Return the topic that a command line means: its own, or the pipeline's first one of those that are usual here."""
    file, chosen = parsed(words or (), topic)
    loaded = load(file) if file is not None else None
    pipeline = loaded.pipeline if loaded is not None else None
    named = chosen or next(iter(usual(pipeline)), None) if pipeline is not None else chosen
    if named is None:
        raise OptionRefused(
            f"{file} names no topic to use here" if file is not None else "no topic is named",
            kept=_UNTOUCHED,
            then="name it: [FILE] TOPIC; or pass a pipeline's FILE that names it",
        )
    folder = loaded.folder if loaded is not None else Path()
    return Place(kafka(pipeline.kafka if pipeline is not None else None), named, pipeline, folder, str(file or ""))
