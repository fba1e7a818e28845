"""A worker that is short of memory gives no verdict on a record: its task fails, and another one tries again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.stages.formats import avro, json_model
from tailrace.stages.formats.arrow import Misfit, decode_values
from tailrace.stages.formats.avro_schema import AvroSchema, read_avro
from tailrace.stages.formats.json_model import read_model

LARGE = (1 << 20) + 1


def short(*_: Any, **__: Any) -> Any:
    """Fail as an allocation does."""
    raise MemoryError


@pytest.fixture
def schema(tmp_path: Path) -> AvroSchema:
    """Return the schema of a record with one text."""
    fields = [{"name": "x", "type": "string"}]
    (tmp_path / "s.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}), encoding="utf-8")
    return read_avro("s.avsc", tmp_path)


def test_large_record_of_avro_is_not_rejected_for_want_of_memory(
    schema: AvroSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small one, the length that cannot be allocated is in the record."""
    decode = avro.decoder(schema, None)
    monkeypatch.setattr("fastavro.schemaless_reader", short)
    with pytest.raises(MemoryError):
        decode(b"x" * LARGE)
    with pytest.raises(Misfit, match="not avro"):
        decode(b"x")


def test_row_is_not_rejected_for_want_of_memory_to_write_it(
    schema: AvroSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same row may be written by another worker."""
    encode = avro.encoder(schema, None)
    monkeypatch.setattr("fastavro.schemaless_writer", short)
    with pytest.raises(MemoryError):
        encode({"x": "text"})


def test_record_of_a_model_is_not_rejected_for_want_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validators of the user's own may raise anything else."""
    (tmp_path / "m.py").write_text("from pydantic import BaseModel\nclass M(BaseModel):\n    x: str\n")
    model = read_model("m.py:M", tmp_path)
    kind = json_model.load_model(model)
    monkeypatch.setattr(json_model, "load_model", lambda model: kind)
    assert json_model.decoder(model)(b'{"x": "text"}') == {"x": "text"}
    monkeypatch.setattr(kind, "model_validate_json", short)
    with pytest.raises(MemoryError):
        json_model.decoder(model)(b'{"x": "text"}')


def test_value_is_not_rejected_for_want_of_memory_for_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's error is both an ArrowException, by which values are refused, and a MemoryError."""
    array = pa.array

    def made(values: Any, kind: Any = None) -> Any:
        if values == ["large"]:
            raise pa.ArrowMemoryError
        return array(values, kind)

    monkeypatch.setattr("pyarrow.array", made)
    with pytest.raises(MemoryError):
        decode_values([b"large"], pa.schema([("x", pa.string())]), lambda record: {"x": record.decode()}, "no fit")
