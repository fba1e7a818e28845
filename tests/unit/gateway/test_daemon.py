"""The executor's Python daemon makes tasks cheap, and still notices new modules."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tailrace.gateway import daemon

SCRIPT = """
import importlib, sys, zipfile
ours, shipped = sys.argv[1:]
sys.path[:0] = [ours]
import kept
from tailrace.gateway import daemon
daemon.keep_archives()
sys.path[:0] = [shipped]
import early
for path, name in ((ours, "late"), (shipped, "new")):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name + ".py", "")
importlib.invalidate_caches()
print(importlib.util.find_spec("late") is None, importlib.util.find_spec("new") is not None)
"""


def test_only_archives_other_than_sparks_are_read_again(tmp_path: Path) -> None:
    """Archives on the daemon's path at its start are fixed; a module added to another archive is found."""
    for name, module in (("ours", "kept"), ("shipped", "early")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(f"{module}.py", "")
    paths = [str(tmp_path / f"{name}.zip") for name in ("ours", "shipped")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


LOADS = """
import sys
from tailrace.gateway import daemon
daemon.load("wave,no_such_module_at_all,colorsys")
print("wave" in sys.modules, "colorsys" in sys.modules)
"""
WITHOUT = """
import sys
from tailrace.gateway import server
sys.meta_path.insert(0, server.WithoutPandas())
import pyarrow
print(len(pyarrow.array([b"a", None])), "pandas" in sys.modules)
"""


def test_daemon_preloads_modules_and_tolerates_missing_ones() -> None:
    """A module that the image lacks fails only the task that needs it."""
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_gateway_creates_arrow_arrays_without_pandas() -> None:
    """pyarrow would load it with the first array, which takes longer than a batch."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_installed_pyspark_comes_before_its_own_archives_only(tmp_path: Path) -> None:
    """Archives of another Spark stay first: their PySpark is the one that fits its JVM."""
    package = tmp_path / "packages" / "pyspark"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    own, other, installed = (
        f"{package}/python/lib/pyspark.zip",
        "/opt/spark/python/lib/pyspark.zip",
        str(package.parent),
    )
    assert daemon.package_first([own, "/job", installed]) == ["/job", installed, own]
    assert daemon.package_first([other, "/job", installed]) == [other, "/job", installed]
    assert daemon.package_first([other, "/job"]) == [other, "/job"]
