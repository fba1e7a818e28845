"""Trim the installed packages to what pipelines load, so that nodes pull less.

It removes jars, by a list with reasons; tests and headers of Python packages; and RocksDB's libraries for other
systems, since its one jar holds those of every system.
"""

from __future__ import annotations

import platform
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

PACKAGES = Path(sysconfig.get_paths()["purelib"])
FOLDERS = (
    "pandas/tests",
    "pyarrow/tests",
    "pyarrow/include",
    "pyarrow/src",
    "numpy/tests",
    "pyspark/examples",
    "pyspark/data",
)
# Arrow Flight: pyarrow loads it only on demand, and nothing here uses it.
LIBRARIES = ("pyarrow/*flight*.so*",)
ROCKSDB = {"x86_64": "librocksdbjni-linux64.so", "aarch64": "librocksdbjni-linux-aarch64.so"}


def main(listed: str) -> None:
    """Delete, and report how much that freed."""
    before = size()
    lines = (line.partition("#")[0].split() for line in Path(listed).read_text(encoding="utf-8").splitlines())
    for prefix in (line[0] for line in lines if line):
        found = list((PACKAGES / "pyspark" / "jars").glob(f"{prefix}*.jar"))
        for jar in found:
            jar.unlink()
        sys.stdout.write(f"{prefix}: {len(found)}\n")
    for folder in FOLDERS:
        shutil.rmtree(PACKAGES / folder, ignore_errors=True)
    for pattern in LIBRARIES:
        for library in PACKAGES.glob(pattern):
            library.unlink()
    for jar in (PACKAGES / "pyspark" / "jars").glob("rocksdbjni-*.jar"):
        slim(jar, ROCKSDB[platform.machine()])
    sys.stdout.write(f"{before / 1e6:.0f} MB before, {size() / 1e6:.0f} MB after\n")


def slim(jar: Path, library: str) -> None:
    """Rewrite the jar with only this native library."""
    made = jar.with_suffix(".slim")
    with zipfile.ZipFile(jar) as full, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as less:
        entries = full.infolist()
        if library not in full.namelist():
            sys.exit(f"{jar.name} has no {library}: stateful pipelines would not start")
        for entry in entries:  # with its time, so that each build makes the same jar
            native = entry.filename.startswith("librocksdbjni") and "/" not in entry.filename
            if not native or entry.filename == library:
                less.writestr(entry, full.read(entry))
    made.replace(jar)


def size() -> int:
    """Return the size of all packages, in bytes."""
    return sum(path.stat().st_size for path in PACKAGES.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(sys.argv[1])
