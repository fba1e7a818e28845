"""`tailrace kafka topic create`, `produce` and `consume`: the everyday tasks on any Kafka, without another tool.

A pipeline's FILE gives the connection, the topics and, for Avro, the schema; an address and --topic do without one.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.terminal import Output, OutputOption, done, emit, interactive, note, say
from tailrace.config import Format, Kafka, Pipeline, Sink, Source
from tailrace.config.file import load
from tailrace.errors import OptionRefused

if TYPE_CHECKING:
    from tailrace.kafka.reader import Message
    from tailrace.testing import Record

FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The pipeline's configuration: its connection and topics.")
]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", help="The topic, instead of the pipeline's.")]
Decode = Callable[[bytes], dict[str, Any]]
_ANY = sys.maxsize  # bytes: consume cuts nothing


@dataclass(frozen=True)
class Place:
    """A topic, its brokers, and the pipeline that names them, if there is one."""

    kafka: Kafka
    topic: str
    pipeline: Pipeline | None
    folder: Path

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


def place(
    file: Path | None,
    topic: str | None,
    usual: Callable[[Pipeline], Iterable[str]],
    kafka: Callable[[Kafka | None], Kafka],
) -> Place:
    """Return the topic that a command line means: --topic, or the pipeline's first one of those that are usual here."""
    loaded = load(file) if file is not None else None
    pipeline = loaded.pipeline if loaded is not None else None
    named = topic or next(iter(usual(pipeline)), None) if pipeline is not None else topic
    if named is None:
        raise OptionRefused(
            f"{file} names no topic to use here" if file is not None else "no topic is named",
            kept="nothing was read or written",
            then="name it with --topic TOPIC, or pass a pipeline's FILE that names it",
        )
    folder = loaded.folder if loaded is not None else Path()
    return Place(kafka(pipeline.kafka if pipeline is not None else None), named, pipeline, folder)


# -- produce ---------------------------------------------------------------------------------------


def produce(
    file: FileArgument = None,
    topic: TopicOption = None,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write the lines of stdin as records, and end when the brokers have acknowledged them all.

    A line is a value, or KEY<tab>VALUE. Without --topic they go to the first source topic of FILE. An error says how
    many were not acknowledged.
    """
    to = place(
        file, topic, lambda each: each.source.topics, lambda base: connection(bootstrap, properties, option, base)
    )
    if to.avro:
        raise OptionRefused(
            f"the values of {to.topic} are Avro, and lines are text",
            kept="nothing was written",
            then=f"write them as they are with -t {to.topic} -b {to.kafka.bootstrap_servers}, without FILE",
        )
    from tailrace.kafka.cluster import Cluster
    from tailrace.kafka.rights import Operation
    from tailrace.testing import produce as write

    Cluster(to.kafka).require([to.topic], "topic", Operation.WRITE)
    if interactive():
        note(f"type records for {to.topic}, one per line, as VALUE or KEY<tab>VALUE; Ctrl-D ends")
    count = 0

    def counted() -> Iterator[Record]:
        nonlocal count
        for each in records(sys.stdin.buffer):
            yield each
            count += 1

    write(to.kafka.bootstrap_servers, to.topic, counted(), options=to.kafka.options)
    if output is Output.JSON:
        emit({"topic": to.topic, "written": count})
        return
    done(f"written: {count} records to {to.topic}", f"tailrace kafka consume {_again(file, bootstrap)}-t {to.topic}")


def _again(file: Path | None, bootstrap: str | None) -> str:
    """Return the words by which another command finds the same brokers."""
    words = ([str(file)] if file is not None else []) + (["-b", bootstrap] if bootstrap is not None else [])
    return "".join(f"{shlex.quote(each)} " for each in words)


def records(lines: Iterable[bytes]) -> Iterator[Record]:
    """Yield a record for each line that is not empty."""
    from tailrace.testing import Record

    for line in lines:
        text = line.rstrip(b"\r\n")
        if text:
            key, tab, value = text.partition(b"\t")
            yield Record(value, key) if tab else Record(text)


# -- consume ---------------------------------------------------------------------------------------


def consume(
    file: FileArgument = None,
    topic: TopicOption = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="End after this many records.")] = 10,
    newest: Annotated[bool, typer.Option("--new", help="Only records that are written from now on.")] = False,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0, help="Seconds to wait at the end for more; default: 0, and 60 with --new."),
    ] = None,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show committed records of a topic: PARTITION:OFFSET, key and value, with tabs between them.

    Without --topic it is the first sink topic of FILE. Avro is decoded if FILE says that the topic's values are Avro.
    No consumer group is used. With --output json there is one object per record.
    """
    to = place(file, topic, lambda each: each.sink.named, lambda base: connection(bootstrap, properties, option, base))
    decode = decoder(to) if to.avro else None
    from tailrace.kafka.reader import follow

    shown = 0
    patience = wait if wait is not None else 60.0 if newest else 0.0
    with follow(to.kafka, to.topic, newest=newest, wait=patience) as found:
        for message in found:
            show(message, decode, output)
            shown += 1
            if shown == count:
                break
    note(f"{shown} records of {to.topic}" + ("; --count N shows more" if shown == count else ""))


def decoder(to: Place) -> Decode:
    """Return what decodes the topic's Avro."""
    from tailrace.stages.formats import known

    if isinstance(to.format, Source):
        made: Any = known.source_format(to.format, to.folder, jvm=False)
    else:
        made = known.sink_format(to.format or Sink(), to.folder)
    from tailrace.stages.formats import avro  # needs fastavro, which is an extra: the line above says so

    decode: Decode = avro.decoder(made.schema, made.registry)
    return decode


def show(message: Message, decode: Decode | None, output: Output) -> None:
    """Write one record; a value that is not the Avro that it should be is shown as it is."""
    from tailrace.admin.rejected import content, when

    decoded = _decoded(message.value, decode) if decode is not None else None
    if output is Output.JSON:
        head = {"topic": message.topic, "partition": message.partition, "offset": message.offset, "at": when(message)}
        more = {} if decode is None else {"decoded": decoded}
        emit({**head, **content(message, _ANY), **more})
        return
    value = line(message.value) if decoded is None else json.dumps(decoded, ensure_ascii=False, default=str)
    say(f"{message.partition}:{message.offset}\t{line(message.key)}\t{value}")


def _decoded(value: bytes | None, decode: Decode) -> dict[str, Any] | None:
    from tailrace.stages.formats.arrow import Misfit

    if value is None:
        return None
    try:
        return decode(value)
    except Misfit:
        return None


def line(value: bytes | None) -> str:
    """Return bytes on one line: text that leaves the terminal alone, otherwise hexadecimal."""
    from tailrace.admin.rejected import text_of

    if value is None:
        return "null"
    text = text_of(value)
    return f"0x{value.hex()}" if text is None else text.replace("\r", "").replace("\n", "\\n").replace("\t", "\\t")
