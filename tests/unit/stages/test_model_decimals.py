"""Decimals of a pydantic model: the column that holds them, and the digits of a record's number."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from support.spark import in_order, records
from tailrace.config import Source
from tailrace.errors import SchemaInvalid
from tailrace.stages.decode import decode
from tailrace.stages.formats.json_model import load_model, read_model, schema_of

HEAD = """
from decimal import Decimal
from typing import Annotated
from pydantic import BaseModel, ConfigDict, Field, condecimal, field_validator
"""
LIMITS = """
class M(BaseModel):
    plain: Decimal | None = None
    both: Decimal | None = Field(None, max_digits=10, decimal_places=2)
    digits: Decimal | None = Field(None, max_digits=10)
    longest: Annotated[Decimal, Field(max_digits=19)] | None = None
    places: Annotated[Decimal | None, Field(decimal_places=2)] = None
    more_places_than_digits: Decimal | None = Field(None, max_digits=2, decimal_places=4)
    long: Decimal | None = Field(None, max_digits=50, decimal_places=4)
    each: list[condecimal(max_digits=6)] = []
"""


def source() -> Source:
    """Return a JSON source whose model is in m.py."""
    return Source.model_validate({"topics": ["in"], "format": "json", "schema": "m.py:M"})


def judged(spark: SparkSession, folder: Path, model: str, values: list[bytes]) -> list[dict[str, Any]]:
    """Return the rows of these values with the names of their columns."""
    (folder / "m.py").write_text(HEAD + model, encoding="utf-8")
    return [row.asDict(recursive=True) for row in in_order(decode(records(spark, values), source(), folder))]


def test_column_of_a_decimal_holds_what_its_limits_permit(tmp_path: Path) -> None:
    """Without places, all digits may come before the point or all after it."""
    (tmp_path / "m.py").write_text(HEAD + LIMITS, encoding="utf-8")
    assert schema_of(load_model(read_model("m.py:M", tmp_path))).simpleString() == (
        "struct<plain:decimal(38,18),both:decimal(10,2),digits:decimal(20,10),longest:decimal(38,19),"
        "places:decimal(38,2),more_places_than_digits:decimal(2,2),long:decimal(38,4),each:array<decimal(12,6)>>"
    )


def test_value_that_the_limits_of_a_decimal_permit_fits_its_column(spark: SparkSession, tmp_path: Path) -> None:
    """A model that names only its digits takes them on both sides of the point."""
    fitting: dict[bytes, tuple[str, Any]] = {
        b'{"digits":"12.5"}': ("digits", Decimal("12.5")),
        b'{"digits":7}': ("digits", Decimal(7)),
        b'{"digits":"9999999999"}': ("digits", Decimal(9999999999)),
        b'{"digits":"0.0000000001"}': ("digits", Decimal("0.0000000001")),
        b'{"longest":"-9999999999999999999"}': ("longest", Decimal(-9999999999999999999)),
        b'{"longest":"0.0000000000000000001"}': ("longest", Decimal("0.0000000000000000001")),
        b'{"places":"123456789012345678901234567890123456.25"}': (
            "places", Decimal("123456789012345678901234567890123456.25"),
        ),
        b'{"more_places_than_digits":"0.12"}': ("more_places_than_digits", Decimal("0.12")),
        b'{"each":["1.5",123456]}': ("each", [Decimal("1.5"), Decimal(123456)]),
    }  # fmt: skip
    rows = judged(spark, tmp_path, LIMITS, list(fitting))
    for row, (value, (name, expected)) in zip(rows, fitting.items(), strict=True):
        assert (row[name], row["_reason"]) == (expected, None), (value, row["_detail"])


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("max_digits=20", "the model's field price is a Decimal of 20 digits without decimal_places"),
        ("max_digits=50", "a Decimal of 50 digits without decimal_places"),
        ("decimal_places=39", "a Decimal of 39 decimal_places"),
        ("max_digits=50, decimal_places=40", "a Decimal of 40 decimal_places"),
    ],
)
def test_decimal_that_no_column_holds_is_refused(tmp_path: Path, limits: str, words: str) -> None:
    """A column has 38 digits, and the point has one place in all of them."""
    model = f"class M(BaseModel):\n    price: Decimal = Field({limits})\n"
    (tmp_path / "m.py").write_text(HEAD + model, encoding="utf-8")
    with pytest.raises(SchemaInvalid) as raised:
        schema_of(load_model(read_model("m.py:M", tmp_path)))
    assert words in str(raised.value)
    assert "decimal_places" in str(raised.value.then)


NUMBERS = """
class Part(BaseModel):
    d: Decimal

class M(BaseModel):
    d: Decimal | None = None
    price: Annotated[Decimal, Field(max_digits=6, decimal_places=2)] | None = None
    wide: Annotated[Decimal, Field(max_digits=19, decimal_places=2)] | None = None
    below: Annotated[Decimal, Field(lt=1)] | None = None
    many: list[Decimal] = []
    by: dict[str, Decimal] = {}
    part: Part | None = None
    alias: Decimal | None = Field(None, alias="a.b")
    checked: Decimal | None = None
    f: float | None = None
    i: int | None = None
    s: str | None = None

    @field_validator("checked")
    @classmethod
    def _doubled(cls, value):
        return value * 2
"""
STRICT = "\n    model_config = ConfigDict(strict=True)\n"


@pytest.mark.parametrize("model", [NUMBERS, NUMBERS.replace("class M(BaseModel):\n", f"class M(BaseModel):{STRICT}")])
def test_number_for_a_decimal_keeps_its_digits(spark: SparkSession, tmp_path: Path, model: str) -> None:
    """pydantic reads a number as a double; all its digits arrive nevertheless, wherever the decimal is."""
    exact: dict[bytes, dict[str, Any]] = {
        b'{"d":1.123456789012345678}': {"d": Decimal("1.123456789012345678")},
        b'{"d":-852845085374252.2}': {"d": Decimal("-852845085374252.2")},
        b'{"d":-12345678901234567.89}': {"d": Decimal("-12345678901234567.89")},
        b'{"d":1234567890123456789.5e-2}': {"d": Decimal("12345678901234567.895")},
        b'{"d":"1.123456789012345678"}': {"d": Decimal("1.123456789012345678")},
        b'{"d":12345678901234567890}': {"d": Decimal(12345678901234567890)},
        b'{"d":0.1}': {"d": Decimal("0.1")},
        b'{"wide":99999999999999999.99}': {"wide": Decimal("99999999999999999.99")},  # rounded, it has a digit more
        b'{"below":0.999999999999999999}': {"below": Decimal("0.999999999999999999")},  # and this is 1
        b'{"d":0.5,"more":' + b"1" * 4000 + b"}": {"d": Decimal("0.5")},
        b'{"many":[1,0.123456789012345678,2.5]}': {"many": [1, Decimal("0.123456789012345678"), Decimal("2.5")]},
        b'{"by":{"1.123456789012345678":1.123456789012345678}}': {
            "by": {"1.123456789012345678": Decimal("1.123456789012345678")},
        },
        b'{"part":{"d":1.123456789012345678}}': {"part": {"d": Decimal("1.123456789012345678")}},
        b'{"a.b":1.123456789012345678}': {"alias": Decimal("1.123456789012345678")},
        b'{"checked":1.123456789012345678}': {"checked": Decimal("2.246913578024691356")},
        b'{"s":"a \\" 1.123456789012345678 \\\\","d":1.123456789012345678}': {
            "s": 'a " 1.123456789012345678 \\', "d": Decimal("1.123456789012345678"),
        },
        b'{"d":1.5,"more":[1.123456789012345678]}': {"d": Decimal("1.5")},
        b'{"f":0.1000000000000000055,"d":0.123456789012345678}': {"f": 0.1, "d": Decimal("0.123456789012345678")},
    }  # fmt: skip
    rows = judged(spark, tmp_path, model, list(exact))
    for row, (value, expected) in zip(rows, exact.items(), strict=True):
        assert row["_reason"] is None, (value, row["_detail"])
        assert {name: row[name] for name in expected} == expected, value


@pytest.mark.parametrize("model", [NUMBERS, NUMBERS.replace("class M(BaseModel):\n", f"class M(BaseModel):{STRICT}")])
def test_number_with_more_digits_than_a_decimal_holds_is_rejected(
    spark: SparkSession, tmp_path: Path, model: str
) -> None:
    """A double would hide digits that the column or the field's limits do not take; other fields judge as before."""
    values = [
        b'{"d":1.1234567890123456789}', b'{"d":1e-400}', b'{"d":1e400}', b'{"d":1e-9999999999999999999999}',
        b'{"price":1.0000000000000000000001}', b'{"below":1.00000000000000000000001}', b'{"s":0.1000000000000000055}',
        b'{"below":1.5}', b'{"below":2,"s":0.1000000000000000055}', b'{"below":0.1,"i":1.0000000000000000000001e99}',
    ]  # fmt: skip
    rows = judged(spark, tmp_path, model, values)
    assert [row["_reason"] for row in rows] == ["does not fit the model"] * len(values), rows


def test_number_of_a_strict_float_that_a_decimal_shares_is_not_rounded(spark: SparkSession, tmp_path: Path) -> None:
    """A strict float takes no text, so a record that has the same number for a decimal is rejected, not rounded."""
    model = f"class M(BaseModel):{STRICT}    f: float\n    g: float = 0.0\n    d: Decimal = Decimal(0)\n"
    values = [
        b'{"f":0.1000000000000000055,"g":0.1000000000000000055,"d":0.123456789012345678}',
        b'{"f":0.123456789012345678,"d":0.123456789012345678}',
    ]
    one, other = judged(spark, tmp_path, model, values)
    assert (one["f"], one["g"], one["d"], one["_reason"]) == (0.1, 0.1, Decimal("0.123456789012345678"), None)
    assert other["_reason"] == "does not fit the model"
