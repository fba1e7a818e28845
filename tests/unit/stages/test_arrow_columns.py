"""Decoded values as Arrow columns: what does not fit its field's type rejects the record."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from tailrace.stages.formats import json_model
from tailrace.stages.formats.arrow import _as, _integer, decode_values
from tailrace.stages.formats.base import written

NUMBERS = pa.struct([("n", pa.int32()), ("d", pa.float64())])
MODEL = """
from pydantic import BaseModel, field_validator

class Price(BaseModel):
    cents: int
    name: str

    @field_validator("cents")
    @classmethod
    def halved(cls, value):
        return value / 2
"""


def column(values: list[Any], kind: pa.DataType) -> tuple[list[Any], list[str | None], list[str | None]]:
    """Decode records of one field that have these values; return the column, the reasons and the details."""
    left = iter(values)
    wanted = pa.schema([("x", kind)])
    [found], verdicts = decode_values([b""] * len(values), wanted, lambda record: {"x": next(left)}, "misfit")
    return found.to_pylist(), verdicts.reasons, verdicts.details


@pytest.mark.parametrize(
    ("cut", "fits", "kind"),
    [
        (1.5, 2, pa.int64()),
        (-0.5, 2.0, pa.int32()),
        (np.float32(1.5), np.int64(2), pa.int16()),
        (Decimal("1.5"), Decimal(2), pa.int64()),
        (1.5, date(2026, 1, 2), pa.date32()),
        (1.5, datetime(2026, 1, 2, tzinfo=UTC), pa.timestamp("us", "UTC")),
        ([1, None, 1.5], [1, None], pa.list_(pa.int64())),
        (np.array([1.5]), [1], pa.list_(pa.int64())),
        ({"n": 1.5, "d": 1.5}, {"n": 1, "d": 1.5}, NUMBERS),
        ({"n": 1.5}, {"d": 1.5}, NUMBERS),
        ((1.5, 1.5), (1, 1.5), NUMBERS),
        ([{"n": 1}, None, {"n": 1.5}], [{"n": 1}, None, {"d": 0.5}], pa.list_(NUMBERS)),
        ({"k": 1.5}, {"k": 1}, pa.map_(pa.string(), pa.int64())),
        ([("k", [1.5])], [("k", [1]), ("l", None)], pa.map_(pa.string(), pa.list_(pa.int64()))),
    ],
)
def test_number_that_arrow_would_cut_rejects_its_record(cut: Any, fits: Any, kind: pa.DataType) -> None:
    """Arrow makes 1 of 1.5 without a word; whole numbers stay, however they are written."""
    found, reasons, details = column([fits, cut, None, fits], kind)
    assert reasons == [None, "misfit", None, None]
    assert details[1] is not None
    assert details[1].startswith("x: ")
    assert "fraction" in details[1]
    assert found[1:3] == [None, None]
    assert found[0] == found[3] == pa.array([fits], kind)[0].as_py()


def test_cut_number_is_found_next_to_a_value_that_arrow_refuses() -> None:
    """Then values are tried one by one."""
    found, reasons, _ = column([1, "a", 1.5, 2], pa.int64())
    assert (found, reasons) == ([1, None, None, 2], [None, "misfit", "misfit", None])


def test_validator_of_a_model_that_returns_a_fraction_for_an_int_rejects_the_record(tmp_path: Path) -> None:
    """pydantic does not check what it returns."""
    (tmp_path / "prices.py").write_text(MODEL, encoding="utf-8")
    model = json_model.read_model("prices.py:Price", tmp_path)
    wanted = to_arrow_schema(json_model.schema_of(json_model.load_model(model)))
    records = [b'{"cents":3,"name":"a"}', b'{"cents":4,"name":"b"}']
    [cents, names], verdicts = decode_values(records, wanted, json_model.decoder(model), json_model.MISFIT)
    assert (cents.to_pylist(), names.to_pylist()) == ([None, 2], ["a", "b"])
    assert verdicts.reasons == [json_model.MISFIT, None]


LARGE = Decimal("3.40282366920938463563374607431768211456")  # 2**128 + 10**20 of its last digit
PRICE = pa.decimal128(38, 18)


@pytest.mark.parametrize("decimal", [LARGE, Decimal("1E-99999999"), Decimal("-1E-57"), Decimal("1E+9999999"), 2**128])
@pytest.mark.parametrize(
    ("within", "kind"),
    [
        (lambda each: each, PRICE),
        (lambda each: {"p": each}, pa.struct([("p", PRICE)])),
        (lambda each: (each, 1), pa.struct([("p", PRICE), ("n", pa.int64())])),
        (lambda each: [None, each], pa.list_(PRICE)),
        (lambda each: np.array([each]), pa.list_(PRICE)),
        (lambda each: {"k": each}, pa.map_(pa.string(), PRICE)),
        (lambda each: [("k", [each])], pa.map_(pa.string(), pa.list_(PRICE))),
    ],
)
def test_decimal_of_more_digits_than_arrow_has_rejects_its_record(decimal: Any, within: Any, kind: pa.DataType) -> None:
    """Arrow would make 1E-18 of the first, and end the process on the second."""
    usual = within(Decimal("1.5"))
    found, reasons, details = column([usual, within(decimal), None, usual], kind)
    assert reasons == [None, "misfit", None, None]
    assert details[1] is not None
    assert details[1].startswith("x: ")
    assert found[1:3] == [None, None]
    assert found[0] == found[3] == pa.array([usual], kind)[0].as_py()


@pytest.mark.parametrize(
    "value", [Decimal("1.5" + "0" * 60), Decimal("0E-99999999"), Decimal("0E+9"), Decimal("1E+19"), 10**19, None]
)
def test_decimal_that_fits_is_kept_however_it_is_written(value: Any) -> None:
    """Zeros at the end need no digits of the type."""
    found, reasons, _ = column([value], PRICE)
    assert (found, reasons) == ([value if value is None else Decimal(value)], [None])


MOMENT = pa.timestamp("us", "UTC")
LATE = 253_402_318_800_000_000  # five hours into the year 10000
USUAL = 1_767_312_000_000_000


@pytest.mark.parametrize(
    ("usual", "late", "kind"),
    [
        (USUAL, LATE, MOMENT),
        (USUAL, -LATE, pa.timestamp("us")),
        (20_000, 5_000_000, pa.date32()),
        ({"a": USUAL, "n": 1}, {"a": LATE, "n": 1}, pa.struct([("a", MOMENT), ("n", pa.int64())])),
        ([USUAL], [USUAL, LATE], pa.list_(MOMENT)),
        ([("k", USUAL)], [("k", LATE)], pa.map_(pa.string(), MOMENT)),
    ],
    ids=["timestamp", "local", "date", "struct", "list", "map"],
)
@pytest.mark.parametrize("gap", [False, True])
def test_row_with_a_time_that_python_cannot_hold_is_rejected(usual: Any, late: Any, kind: Any, gap: bool) -> None:
    """Its neighbours are written; the rejected value has the time as an integer."""
    times = pa.array([usual, late, usual], _as(kind, _integer)).cast(kind)
    rows = pa.StructArray.from_arrays(
        [pa.array(["a", "b", "c"]), times], ["text", "at"], mask=pa.array([False, False, gap])
    )
    values, verdicts = written(rows, lambda row: f"{row['text']} {row['at']}".encode())
    first = f"a {times[0].as_py()}".encode()
    assert values.to_pylist() == [
        first,
        json.dumps({"text": "b", "at": late}).encode(),
        None if gap else first.replace(b"a", b"c", 1),
    ]
    assert verdicts.refused() == {1: ("time out of range", "outside the years 1 to 9999: at")}


def text(*values: bytes) -> pa.Array:
    """Return bytes as Arrow's text, as Spark makes it by a cast."""
    return pa.array(values, pa.binary()).view(pa.string())


ODD = text(b"a", b"\xff", b"c")


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (text(b"a", b"\xff", b"c"), "/w=="),
        (
            pa.StructArray.from_arrays([text(b"a", b"\xff", b"c"), text(b"a", b"b", b"c")], ["x", "y"]),
            {"x": "/w==", "y": "Yg=="},
        ),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), text(b"a", b"\xff", b"c")), ["/w=="]),
        (pa.MapArray.from_arrays([0, 1, 2, 3], text(b"a", b"\xff", b"c"), text(b"1", b"2", b"3")), [["/w==", "Mg=="]]),
    ],
    ids=["text", "struct", "list", "map"],
)
def test_row_with_text_that_python_cannot_hold_is_rejected(column: pa.Array, shown: Any) -> None:
    """Its neighbours are written; the rejected value has the bytes in Base64."""
    rows = pa.StructArray.from_arrays([pa.array([1, 2, 3]), column], ["id", "text"])
    values, verdicts = written(rows, lambda row: b"%d" % row["id"])
    assert values.to_pylist() == [b"1", json.dumps({"id": 2, "text": shown}).encode(), b"3"]
    assert verdicts.refused() == {1: ("not utf-8", "bytes that are not UTF-8: text")}
