"""Single JSON values as Jackson writes them, and so as Spark's `to_json` and text fields have them.

Doubles follow Java (`1.0E10`), text is escaped as little as JSON allows, and control characters have capital hex
digits. A number has the fewest digits that read back as the same number, as Java writes it since version 19; an older
Java writes more for a few, such as 1.9999999999999998E23 for 2e23.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f]")
_CLOSED = object()  # after the last value within another
_encode = json.encoder.encode_basestring


def quoted(text: str) -> str:
    """Quote and escape a text."""
    found = _encode(text)
    if "\\u00" in found and _CONTROL.search(text):
        return '"' + _CONTROL.sub(_control, text.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    return found


def _control(found: re.Match[str]) -> str:
    text = _encode(found[0])[1:-1]
    return text if len(text) == 2 else f"\\u{ord(found[0]):04X}"


def java_double(value: float, shortest: str | None = None) -> str:
    """Write a double as Java does; infinity and NaN are quoted. `shortest` has the digits of a narrower type."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    text = shortest or repr(value)
    size = abs(value)
    if 1e-3 <= size < 1e7 or size == 0:
        text = format(Decimal(text), "f") if "e" in text else text
        return text if "." in text else f"{text}.0"
    found = Decimal(text).normalize()
    if len(found.as_tuple().digits) == 1:  # Java writes two, those that come nearest
        found = Decimal(f"{value:.1e}").normalize()
    sign, digits, exponent = found.as_tuple()
    written = "".join(map(str, digits))
    power = len(digits) - 1 + int(exponent)
    return f"{'-' if sign else ''}{written[0]}.{written[1:] or '0'}E{power}"


def jackson_text(value: Any) -> str:
    """Write a value that `json.loads` made, without blanks; a repeated name stays repeated.

    Values within values wait in a list, because a record may be nested more deeply than calls can be.
    """
    written: list[str] = []
    left: list[tuple[str, Any]] = [("", value)]  # in reverse order, each with the text before it
    while left:
        before, each = left.pop()
        written.append(before)
        if each is _CLOSED:
            continue
        if isinstance(each, list):
            inner = [(",", item) for item in each]
            opening, closing = "[", "]"
        elif isinstance(each, dict):
            pairs = getattr(each, "pairs", None) or each.items()
            inner = [(f",{quoted(name)}:", item) for name, item in pairs]
            opening, closing = "{", "}"
        else:
            written.append(_leaf(each))
            continue
        if inner:
            inner[0] = (inner[0][0][1:], inner[0][1])
        written.append(opening)
        left.append((closing, _CLOSED))
        left += reversed(inner)
    return "".join(written)


def _leaf(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() | Decimal():
            return java_double(float(value))
    return quoted(value)
