"""Spark settings that hold a secret: kept out of the JVM's command line, and out of Spark's logs and pages.

Whatever PySpark is given before its JVM starts becomes an argument of that process, which everybody on the machine can
read. So whatever looks like a secret is passed in a file that only this user can read, and that is deleted once the JVM
has read it. docs/decisions/0016-secrets-and-options-that-reach-out.md
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tailrace.config import SECRET_OPTION

_SUBMIT = "PYSPARK_SUBMIT_ARGS"
# What Spark replaces by (redacted) in its event log, its pages and its plans; in Java's syntax.
PATTERN = f"(?i){SECRET_OPTION.pattern}|passwd|(access|encryption)[.]?key|credential"
REDACTION = {"spark.redaction.regex": PATTERN, "spark.sql.redaction.options.regex": PATTERN}
_SECRET = re.compile(rf"{SECRET_OPTION.pattern}|passwd|(access|encryption)[.]?key", re.IGNORECASE)


def secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings whose names mark their values as secret."""
    return {name: value for name, value in settings.items() if _SECRET.search(name) and name not in REDACTION}


@contextlib.contextmanager
def handed_over(settings: Mapping[str, str]) -> Iterator[None]:
    """Pass these settings in a file to a JVM that PySpark starts inside."""
    if not settings:
        yield
        return
    before = os.environ.get(_SUBMIT)
    handle, name = tempfile.mkstemp(prefix="tailrace-", suffix=".properties")  # mode 0600
    file = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
        given = f"--load-spark-defaults --properties-file {shlex.quote(name)}"
        os.environ[_SUBMIT] = f"{given} {before or 'pyspark-shell'}"
        yield
    finally:
        file.unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_SUBMIT, None)
        else:
            os.environ[_SUBMIT] = before


def _escaped(text: str) -> str:
    """Escape text for a Java properties file: every character that could have a meaning becomes its number."""
    units = text.encode("utf-16-be")
    numbers = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(each) if chr(each).isascii() and chr(each).isalnum() else f"\\u{each:04x}" for each in numbers)
