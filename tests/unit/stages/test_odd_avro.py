"""Avro records that their writers should not have made, and schemas that come late: none of them stops a pipeline."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.registry import SchemaRegistry, schema_registry
from tailrace.config import Registry
from tailrace.stages.formats import avro
from tailrace.stages.formats.arrow import Decoder, Misfit
from tailrace.stages.formats.avro_schema import read_avro
from tailrace.stages.formats.avro_writer import writer
from tailrace.stages.formats.registry import registry as client_of

LONG = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
LIST = LONG | {"fields": [*LONG["fields"], {"name": "next", "type": ["null", "R"]}]}
ONE = b"\x02"  # the long 1

MakeDecoder = Callable[..., Decoder]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Run a schema registry."""
    with schema_registry() as found:
        yield found


@pytest.fixture
def decoder(tmp_path: Path, registry: SchemaRegistry) -> MakeDecoder:
    """Return a function that makes a decoder for a reader's schema, with the registry unless it is plain."""

    def make(schema: Any, *, plain: bool = False) -> Decoder:
        (tmp_path / "s.avsc").write_text(json.dumps(schema), encoding="utf-8")
        settings = None if plain else Registry.model_validate({"url": registry.url})
        return avro.decoder(read_avro("s.avsc", tmp_path), settings)

    return make


def wire(number: int, body: bytes = ONE) -> bytes:
    """Return a value in the wire format."""
    return struct.pack(">bI", 0, number) + body


def reason(read: Decoder, value: bytes) -> str:
    """Return why a value is rejected."""
    with pytest.raises(Misfit) as refused:
        read(value)
    return f"{refused.value.reason}: {refused.value.detail}"


def test_schema_that_is_registered_late_is_found_by_the_same_decoder(
    decoder: MakeDecoder, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline without a DataFrame has one for as long as its process lives."""
    read = decoder(LONG)
    assert reason(read, wire(1)).startswith("unknown schema")
    assert registry.add(LONG) == 1
    assert reason(read, wire(1)).startswith("unknown schema")
    assert len(registry.asked) == 1
    monkeypatch.setattr(avro, "_ASKED_AGAIN", 0.0)
    late = decoder(LONG)
    registry.schemas.clear()
    assert reason(late, wire(1)).startswith("unknown schema")
    registry.add(LONG)
    assert late(wire(1)) == {"id": 1}


@pytest.mark.parametrize("number", [2**31, 2**32 - 1])
def test_number_that_is_no_schema_id_is_not_asked_for(
    decoder: MakeDecoder, registry: SchemaRegistry, number: int
) -> None:
    """A registry answers it as a proxy does in its place, and the batch would wait for that to end."""
    assert (
        reason(decoder(LONG), wire(number))
        == f"unknown schema: schema ids end at 2147483647, and the value has {number}"
    )
    assert registry.asked == []


def test_schema_whose_reference_cannot_be_parsed_rejects_its_records(
    decoder: MakeDecoder, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old registries took such schemas; a schema that has the fault itself rejects its records too."""
    registry.add({"type": "record", "name": "Bad", "fields": [{"name": "x", "type": "nonsense"}]}, "bad-value")
    number = registry.add(LONG | {"name": "Good"})
    answer = registry.answer

    def with_reference(method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, found = answer(method, path, body)
        if path.startswith(f"/schemas/ids/{number}"):
            found |= {"references": [{"name": "Bad", "subject": "bad-value", "version": 1}]}
        return status, found

    monkeypatch.setattr(registry, "answer", with_reference)
    assert "does not parse" in reason(decoder(LONG), wire(number))
    settings = Registry.model_validate({"url": registry.url})
    with pytest.raises(Exception, match="does not parse"):
        client_of(settings).writer(number)


@pytest.mark.parametrize("levels", [100, 2_500, 100_000])
def test_list_of_a_writer_that_contains_itself_is_read_as_deep_as_the_process_can(
    decoder: MakeDecoder, registry: SchemaRegistry, levels: int
) -> None:
    """The reader leaves the list out, and fastavro follows it all the same; beyond its stack, the process ended."""
    value = wire(registry.add(LIST), (ONE + b"\x02") * levels + ONE + b"\x00")
    if levels < 100_000:
        assert decoder(LONG)(value) == {"id": 1}
    else:
        assert reason(decoder(LONG), value) == "not avro: the value is nested too deeply"


@pytest.mark.parametrize("schema", [LIST, {"type": "record", "name": "N", "fields": [{"name": "r", "type": LIST}]}])
def test_schema_that_contains_itself_is_known(schema: Any) -> None:
    """Only its records are read with a limit, which takes longer."""
    assert writer(json.dumps(schema), {}).recursive
    twice = {"name": "s", "type": "R"}
    flat = {"type": "record", "name": "N", "fields": [{"name": "r", "type": LONG}, twice, {**twice, "name": "t"}]}
    assert not writer(json.dumps(flat), {}).recursive


@pytest.mark.parametrize(("kind", "unit", "day"), [("int", "millis", 86_400_000), ("long", "micros", 86_400_000_000)])
@pytest.mark.parametrize("plain", [True, False])
def test_time_that_is_in_no_day_is_neither_read_nor_written(
    decoder: MakeDecoder, registry: SchemaRegistry, tmp_path: Path, kind: str, unit: str, day: int, *, plain: bool
) -> None:
    """fastavro makes 995 ms of -5 ms."""
    schema = LONG | {"fields": [{"name": "at", "type": {"type": kind, "logicalType": f"time-{unit}"}}]}
    read = decoder(schema, plain=plain)
    write = avro.encoder(read_avro("s.avsc", tmp_path), None)
    raw = avro.encoder(_plain(tmp_path, kind), None)
    prefix = b"" if plain else wire(registry.add(schema), b"")
    for good in (0, day - 1):
        assert read(prefix + write({"at": good})) == {"at": good}
    for bad in (-5, -3_599_999, day):
        assert f"{bad} is no time of day" in reason(read, prefix + raw({"at": bad}))
        with pytest.raises(Misfit, match="no time of day"):
            write({"at": bad})


def _plain(folder: Path, kind: str) -> Any:
    (folder / "plain.avsc").write_text(json.dumps(LONG | {"fields": [{"name": "at", "type": kind}]}), encoding="utf-8")
    return read_avro("plain.avsc", folder)
