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
