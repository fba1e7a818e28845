"""Jobs whose key functions have a digest: their modules, laid out in a folder and imported."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

from tailrace.spark_stream.function_digest import digest_of

HELPERS = """
def clean(value):
    return value.strip()

def more(value):
    return value + "m"

def unused(value):
    return value

LIMIT = 1
"""
DEEP = """
import functools
import struct
import parts

LAYOUT = struct.Struct(">q")

class Offset:
    @functools.cached_property
    def offset(self):
        return 40

def far(value):
    return value - 70 + Offset().offset + len(LAYOUT.pack(value))
"""
SHOWN = """
import sys
from pyspark import cloudpickle
from tailrace.spark_stream.function_digest import digest
print(digest(cloudpickle.dumps((make(5), None))))
"""


def lay_out(folder: Path, helpers: str, deep: str = DEEP) -> None:
    """Write the modules that the job imports."""
    (folder / "helpers.py").write_text(helpers)
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "deep.py").write_text(deep)


def inside(folder: Path, job: str, helpers: str, deep: str, divisor: int) -> str:
    """Return the digest of the function in this process."""
    lay_out(folder, helpers, deep)
    sys.path.insert(0, str(folder))
    forget()
    try:
        space: dict[str, object] = {"__name__": "__main__"}
        exec(compile(job, "job.py", "exec"), space)
        return digest_of(space["make"](divisor))  # type: ignore[operator]
    finally:
        sys.path.remove(str(folder))
        forget()


def forget() -> None:
    """Let the next job import its own modules."""
    for name in ("helpers", "parts", "parts.deep"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def laid_out(folder: Path, job: str, modules: dict[str, str]) -> str:
    """Return the digest in a process of its own, of a function of its script that uses these modules."""
    packages = {name.partition(".")[0] for name in modules if "." in name}
    for name, text in modules.items():
        file = folder / name.replace(".", "/")
        file = file / "__init__.py" if name in packages else file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "main.py").write_text(job + SHOWN)
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, str(folder / "main.py")], env=env, capture_output=True, text=True, check=True)
    return ran.stdout.strip()
