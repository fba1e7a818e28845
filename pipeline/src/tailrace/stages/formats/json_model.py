"""JSON with the user's pydantic model: the model's Spark schema, and rows validated by the model.

The class itself is not sent to the workers, because they may not be able to import the user's file. Its source text
is, and each worker process loads it once.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.errors import SchemaInvalid
from tailrace.stages.formats import KEPT
from tailrace.stages.formats.arrow import NOT_UTF8, Decoder, Misfit

REFERENCE = re.compile(r"(?P<where>[\w./-]+):(?P<name>[A-Za-z_]\w*)")

NOT_JSON = "not json"
MISFIT = "does not fit the model"
TOLD = 3  # maximum number of a record's faults listed in its headers

_LEAVES: dict[Any, DataType] = {
    str: StringType(), int: LongType(), float: DoubleType(), bool: BooleanType(), bytes: BinaryType(),
    datetime: TimestampType(), date: DateType(),
}  # fmt: skip
_DECIMAL = DecimalType(38, 18)
_AS_PYDANTIC = TypeAdapter(Decimal)
# Faults of a number that is beyond a field's limits; it may be so only because it was rounded.
_LIMITS = frozenset(
    {
        "decimal_max_digits", "decimal_max_places", "decimal_whole_digits", "greater_than", "greater_than_equal",
        "less_than", "less_than_equal", "multiple_of",
    }
)  # fmt: skip
# A string of JSON, or a number, which is the group.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|(-?\d++(?:\.\d+)?(?:[eE][+-]?\d+)?)', re.DOTALL)


@dataclass(frozen=True)
class Model:
    """Where a model comes from: the text of its file, or only its reference if it is installed."""

    reference: str
    name: str
    text: str | None
    folder: Path


def read_model(reference: str, folder: Path) -> Model:
    """Read the source of `file.py:Model` or `package.module:Model`."""
    found = REFERENCE.fullmatch(reference)
    if found is None:
        raise _invalid(reference, "not of the form file.py:Model or package.module:Model")
    text = None
    if found["where"].endswith(".py"):
        path = folder / found["where"]
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise _invalid(reference, f"{path}: {error.strerror}") from None
    return Model(reference, found["name"], text, folder)


@cache
def load_model(model: Model) -> type[BaseModel]:
    """Load the class, once per process."""
    where = model.reference.rpartition(":")[0]
    sys.path.insert(0, str((model.folder / where).parent if model.text is not None else model.folder))
    try:
        module = importlib.import_module(where) if model.text is None else _executed(where, model)
    except Exception as error:  # the user's file may raise anything
        raise _invalid(model.reference, f"{where} does not load: {type(error).__name__}: {error}") from error
    finally:
        del sys.path[0]
    found = getattr(module, model.name, None)
    if not isinstance(found, type) or not issubclass(found, BaseModel):
        raise _invalid(model.reference, f"{where} has no pydantic model {model.name!r}")
    return found


def _executed(where: str, model: Model) -> ModuleType:
    digest = hashlib.sha256(f"{where}\n{model.text}".encode()).hexdigest()[:12]
    module = ModuleType(f"tailrace_model_{Path(where).stem}_{digest}")
    module.__file__ = str(model.folder / where)
    # pydantic looks up the names in annotations there.
    sys.modules[module.__name__] = module
    exec(compile(model.text or "", module.__file__, "exec"), module.__dict__)
    return module


def schema_of(model: type[BaseModel]) -> StructType:
    """Return the Spark schema that can hold every instance of a model."""
    return _struct(model, "", ())


def _struct(model: type[BaseModel], path: str, above: tuple[type[BaseModel], ...]) -> StructType:
    if model in above:
        raise _unsupported(path, f"{model.__name__}, which contains itself")
    fields = []
    for name, info in model.model_fields.items():
        below = f"{path}.{name}".lstrip(".")
        fields.append(StructField(name, _type(info.annotation, below, (*above, model), info)))
    if not fields:
        raise _unsupported(path or model.__name__, "a model without fields")
    return StructType(fields)


def _type(hint: Any, path: str, above: tuple[type[BaseModel], ...], info: FieldInfo | None = None) -> DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], path, above, FieldInfo.from_annotation(hint))
    if origin in (Union, UnionType):
        others = [each for each in arguments if each is not NoneType]
        if len(others) != 1:
            raise _unsupported(path, f"a union of {', '.join(_name(each) for each in others)}")
        return _type(others[0], path, above, info)
    if origin is Literal:
        return _common([type(each) for each in arguments if each is not None], path)
    if origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return ArrayType(_type(arguments[0], f"{path}.element", above))
    if origin is dict:
        key = _type(arguments[0], f"{path}.key", above)
        if not isinstance(key, StringType):
            raise _unsupported(path, f"a dict with keys of type {_name(arguments[0])}; JSON has str")
        return MapType(StringType(), _type(arguments[1], f"{path}.value", above))
    if isinstance(hint, type):
        if issubclass(hint, BaseModel):
            return _struct(hint, path, above)
        if issubclass(hint, Enum):
            return _common([type(each.value) for each in hint], path)
        if issubclass(hint, Decimal):
            return _decimal(info, path)
        if hint in _LEAVES:
            return _LEAVES[hint]
    raise _unsupported(path, _name(hint))


def _common(kinds: list[type], path: str) -> DataType:
    if len(set(kinds)) != 1 or kinds[0] not in (str, int, bool):
        raise _unsupported(path, f"a choice of {', '.join(sorted({_name(each) for each in kinds})) or 'nothing'}")
    return _LEAVES[kinds[0]]


def _decimal(info: FieldInfo | None, path: str) -> DecimalType:
    """Return a type for all values that the limits permit; raise SchemaInvalid if the place of the point is open."""
    limits = info.metadata if info is not None else []
    digits = next((each.max_digits for each in limits if getattr(each, "max_digits", None) is not None), None)
    places = next((each.decimal_places for each in limits if getattr(each, "decimal_places", None) is not None), None)
    most = _DECIMAL.precision
    if places is None:
        if digits is None:
            return _DECIMAL
        # All digits may come before the point, or all after it.
        if 2 * digits > most:
            raise _too_long(path, f"a Decimal of {digits} digits without decimal_places")
        return DecimalType(2 * digits, digits)
    if digits is not None:
        places = min(places, digits)  # pydantic counts the zeros after the point as digits
    if places > most:
        raise _too_long(path, f"a Decimal of {places} decimal_places")
    return DecimalType(most if digits is None else min(digits, most), places)


def decoder(model: Model) -> Decoder:
    """Validates one record; runs in a worker."""
    kind = load_model(model)
    columns = schema_of(kind)
    plain = {name: _plain(schema.dataType) for name, schema in zip(*_fields(columns), strict=True)}
    validate = partial(_validate_exactly, kind) if _has_decimal(columns) else kind.model_validate_json

    def decode(record: bytes) -> dict[str, Any]:
        try:
            row = validate(record)
            return {name: None if (value := getattr(row, name)) is None else plain[name](value) for name in plain}
        except ValidationError as error:
            raise _misfit(record, error) from None
        except MemoryError:  # says something of the worker, not of the record
            raise
        except Exception as error:  # the user's validator may raise anything
            raise Misfit(MISFIT, f"{type(error).__name__}: {error}") from None

    return decode


def _has_decimal(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_decimal(field.dataType) for field in kind)
        case ArrayType():
            return _has_decimal(kind.elementType)
        case MapType():
            return _has_decimal(kind.valueType)
    return isinstance(kind, DecimalType)


def _validate_exactly(kind: type[BaseModel], record: bytes) -> BaseModel:
    """Validate a record whose decimals keep all digits; raise ValidationError for one that would be rounded.

    pydantic reads a number as a double, and a text for a Decimal exactly, in strict mode too. So a record with numbers
    that a double rounds is validated again with these as texts, also if what was rounded is outside of the limits.
    """
    refused: ValidationError | None = None
    try:
        row = kind.model_validate_json(record)
    except ValidationError as error:
        if any(each["type"] not in _LIMITS for each in error.errors(include_url=False, include_context=False)):
            raise
        refused = error
    rounded = Counter(found for each in _TOKEN.findall(record) if each and _is_rounded(found := each.decode()))
    if not rounded:
        if refused is not None:
            raise refused
        return row
    try:
        return kind.model_validate_json(_with_texts(record, rounded))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        floats = Counter(str(each["input"]) for each in faults if each["type"] == "float_type")
        # A strict float takes no text. Its number may stay if no other field has the same.
        if floats.total() < len(faults) or any(rounded[text] != count for text, count in floats.items()):
            raise
        return kind.model_validate_json(_with_texts(record, rounded.keys() - floats.keys()))


def _is_rounded(number: str) -> bool:
    """Return whether pydantic makes another Decimal of a number; its digits are not always those that Python prints."""
    try:
        return _AS_PYDANTIC.validate_json(number) != Decimal(number)
    except (ValidationError, InvalidOperation):  # too large a number, or too large an exponent
        return True


def _with_texts(record: bytes, numbers: Collection[str]) -> bytes:
    return _TOKEN.sub(
        lambda found: b'"%b"' % found[1] if found[1] and found[1].decode() in numbers else found[0], record
    )


def _fields(schema: StructType) -> tuple[list[str], list[StructField]]:
    return schema.names, schema.fields


def _plain(kind: DataType) -> Callable[[Any], Any]:
    """Convert a model's value to Arrow's."""
    match kind:
        case StructType():
            inner = [(field.name, _plain(field.dataType)) for field in kind]
            return lambda value: {name: _maybe(convert, getattr(value, name)) for name, convert in inner}
        case ArrayType():
            each = _plain(kind.elementType)
            return lambda values: [_maybe(each, value) for value in values]
        case MapType():
            key_of, value_of = _plain(kind.keyType), _plain(kind.valueType)
            return lambda values: [(key_of(key), _maybe(value_of, value)) for key, value in values.items()]
    return lambda value: value.value if isinstance(value, Enum) else value


def _maybe(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _misfit(record: bytes, error: ValidationError) -> Misfit:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the record'}: {each['msg']}" for each in faults[:TOLD])
    if any(each["type"] == "json_invalid" for each in faults):
        try:
            record.decode("utf-8")
        except UnicodeDecodeError as why:
            return Misfit(NOT_UTF8, f"byte {record[why.start]:#04x} at {why.start}")
        return Misfit(NOT_JSON, told)
    more = len(faults) - TOLD
    return Misfit(MISFIT, f"{told}; and {more} more" if more > 0 else told)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _invalid(reference: str, what: str) -> SchemaInvalid:
    return SchemaInvalid(f"schema {reference!r}: {what}", kept=KEPT, then="name a pydantic model, as file.py:Model")


def _too_long(path: str, what: str) -> SchemaInvalid:
    return SchemaInvalid(
        f"the model's field {path} is {what}; a column has {_DECIMAL.precision} digits, before and after the point",
        kept=KEPT,
        then=f"give the field max_digits and decimal_places, of at most {_DECIMAL.precision}",
    )


def _unsupported(path: str, what: str) -> SchemaInvalid:
    return SchemaInvalid(
        f"the model's field {path} is {what}, which has no column type",
        kept=KEPT,
        then="use str, int, float, bool, bytes, datetime, date, Decimal, Enum, Literal, list, dict[str, …] or a model",
    )
