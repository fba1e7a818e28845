"""`tailrace kafka produce` and `consume`: write and read records of any Kafka, without another tool."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tailrace.cli.connection import BootstrapOption, KafkaOption, PropertiesOption, connection
from tailrace.cli.kafka_place import Place, SchemaOption, TopicOption, WordsArgument, place
from tailrace.cli.terminal import Output, OutputOption, done, emit, interactive, note, say
from tailrace.config import Sink, Source
from tailrace.errors import ConfigInvalid, ExtraMissing, OptionRefused

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.kafka.reader import Message
    from tailrace.testing import Record

Decode = Callable[[bytes], dict[str, Any]]
Headers = tuple[tuple[str, bytes | None], ...]
_ANY = sys.maxsize  # bytes: consume cuts nothing


# -- produce ---------------------------------------------------------------------------------------


def produce(
    what: WordsArgument = None,
    topic: TopicOption = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of each record; may be repeated."),
    ] = None,
    schema: SchemaOption = None,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write the lines of stdin as records, and end when the brokers have acknowledged them all.

    A line is a value, or KEY<tab>VALUE. Without a TOPIC they go to the first source topic of FILE. For a topic that has
    Avro, because FILE or --value-schema says so, a value is JSON, written with the registry's newest schema of the
    topic if FILE names a registry. An error says which line was the first that was not written.
    """
    to = place(
        what, topic, lambda each: each.source.topics, lambda base: connection(bootstrap, properties, option, base)
    )
    headers = tuple(map(_header, header or ()))
    encode = _encoder(to, schema) if schema is not None or to.avro else None
    from tailrace.kafka.cluster import Cluster
    from tailrace.kafka.rights import Operation
    from tailrace.testing import produce as write

    Cluster(to.kafka).require([to.topic], "topic", Operation.WRITE)
    if interactive():
        kind = "VALUE" if encode is None else "JSON"
        note(f"type records for {to.topic}, one per line, as {kind} or KEY<tab>{kind}; Ctrl-D ends")
    count, wrong = 0, None

    def counted() -> Iterator[Record]:
        nonlocal count, wrong
        lines = records(sys.stdin.buffer, headers, encode)
        while True:
            try:
                each = next(lines)
            except StopIteration:
                return
            except ConfigInvalid as error:  # those before it are written all the same
                wrong = error
                return
            yield each
            count += 1

    write(to.kafka.bootstrap_servers, to.topic, counted(), options=to.kafka.options)
    if wrong is not None:
        raise ConfigInvalid(
            wrong.what, kept=f"the {count} records before it were written to {to.topic}", then=wrong.then
        )
    if output is Output.JSON:
        emit({"topic": to.topic, "written": count})
        return
    done(f"written: {count} records to {to.topic}", f"tailrace kafka consume {_again(to, bootstrap)}{to.topic}")


def _again(to: Place, bootstrap: str | None) -> str:
    """Return the words by which another command finds the same brokers."""
    words = ([to.file] if to.file else []) + (["-b", bootstrap] if bootstrap is not None else [])
    return "".join(f"{shlex.quote(each)} " for each in words)


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionRefused(
            f"--header {text!r} is not of the form NAME=VALUE",
            kept="nothing was written",
            then="write it as --header trace=42",
        )
    return name, value.encode()


def _encoder(to: Place, schema: Path | None) -> Callable[[bytes], bytes]:
    """Return what turns a line into the topic's Avro."""
    try:
        from tailrace.admin import avro_lines
    except ImportError as error:
        raise ExtraMissing.of("avro", "writing Avro", error) from error

    own = to.format if to.avro else None
    usual = (own.schema_, to.folder) if own is not None and own.schema_ else None
    return avro_lines.encoder(schema, own.registry if own is not None else None, to.topic, usual)


def records(
    lines: Iterable[bytes], headers: Headers = (), encode: Callable[[bytes], bytes] | None = None
) -> Iterator[Record]:
    """Yield a record for each line that is not empty; raise ConfigInvalid for the first that cannot be encoded."""
    from tailrace.testing import Record

    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        key, tab, value = text.partition(b"\t")
        if not tab:
            key, value = b"", text
        if encode is not None:
            try:
                value = encode(value)
            except ConfigInvalid as error:
                raise ConfigInvalid(f"line {number}: {error.what}", then=error.then) from None
        yield Record(value, key if tab else None, headers)


# -- consume ---------------------------------------------------------------------------------------


def consume(
    what: WordsArgument = None,
    topic: TopicOption = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="End after this many records.")] = 10,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where they begin: start, end, PARTITION:OFFSET, or a time such as 2026-11-20T10:00:00Z.",
        ),
    ] = "start",
    newest: Annotated[
        bool, typer.Option("--new", help="Only records that are written from now on; the same as --from end.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0, help="Seconds to wait at the end for more; default: 0, and 60 from the end."),
    ] = None,
    bootstrap: BootstrapOption = None,
    properties: PropertiesOption = None,
    option: KafkaOption = None,
    schema: SchemaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show committed records of a topic: PARTITION:OFFSET, key and value, with tabs between them.

    Without a TOPIC it is the first sink topic of FILE. Avro is decoded if FILE or --value-schema says that the topic's
    values are Avro. No consumer group is used. With --output json there is one object per record, with its headers.
    """
    to = place(what, topic, lambda each: each.sink.named, lambda base: connection(bootstrap, properties, option, base))
    decode = decoder(to, schema) if schema is not None or to.avro else None
    from tailrace.admin import consuming

    beginning = consuming.parse("end" if newest else start)
    shown = 0
    patience = wait if wait is not None else 60.0 if beginning.word == consuming.END else 0.0
    with closing(consuming.records(to.kafka, to.topic, beginning, patience)) as found:
        for message in found:
            show(message, decode, output)
            shown += 1
            if shown == count:
                break
    note(f"{shown} records of {to.topic}" + ("; --count N shows more" if shown == count else ""))


def decoder(to: Place, schema: Path | None = None) -> Decode:
    """Return what decodes the topic's Avro, with the schema of a file or the pipeline's."""
    from tailrace.stages.formats import known

    own = to.format if to.avro else None
    if schema is not None:
        registry = own.registry if own is not None else None
        asked = Source(topics=[to.topic], format="avro", schema_=str(schema.absolute()), registry=registry)
        made: Any = known.source_format(asked, to.folder, jvm=False)
    elif isinstance(own, Source):
        made = known.source_format(own, to.folder, jvm=False)
    else:
        made = known.sink_format(own or Sink(), to.folder)
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
