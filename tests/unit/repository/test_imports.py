"""Unneeded imports: the configuration and the operator work without Spark and Kafka."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "py4j", "confluent_kafka", "pandas")
LIMIT = 60.0


@pytest.mark.parametrize(
    "module",
    [
        "tailrace",
        "tailrace.config",
        "tailrace.config.file",
        "tailrace.errors",
        "tailrace.testing",
        "tailrace.cli.main",
        "tailrace.cli.explain",
        "tailrace_operator.crd",
    ],
)
def test_import_brings_neither_spark_nor_kafka(module: str) -> None:
    """A fresh process is used, in which nothing is imported yet."""
    code = f"import sys, {module}; sys.stdout.write(' '.join(each for each in {HEAVY!r} if each in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert result.stdout == ""


CHANGED = """
import importlib, logging, os, pkgutil, sys, warnings
import pyspark.daemon, pyspark.sql.pandas.serializers, pyspark.sql.datasource, pyspark.worker_util
import confluent_kafka, pandas, pyarrow

def state():
    classes = {
        f"{name}.{key}.{attribute}": id(value)
        for name, module in list(sys.modules.items()) if name.startswith(("pyspark", "py4j"))
        for key, kind in vars(module).items() if isinstance(kind, type)
        for attribute, value in vars(kind).items() if callable(value)
    }
    functions = {
        f"{name}.{key}": id(value)
        for name, module in list(sys.modules.items()) if name.startswith(("pyspark", "py4j"))
        for key, value in vars(module).items() if callable(value)
    }
    loggers = {
        name: (each.level, len(each.handlers), len(each.filters), each.disabled)
        for name, each in [("", logging.getLogger()), *logging.root.manager.loggerDict.items()]
        if isinstance(each, logging.Logger) and not name.startswith("tailrace")
    }
    return classes | functions, dict(os.environ), loggers, list(sys.meta_path), list(warnings.filters)

before = state()
import tailrace
for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
after = state()
for was, now in zip(before, after):
    if isinstance(was, dict):
        assert {k: v for k, v in now.items() if k in was} == was, {k for k in was if now.get(k) != was[k]}
    else:
        assert now == was
"""


def test_importing_every_module_changes_nothing_in_the_users_process() -> None:
    """Neither PySpark's classes and functions, nor the environment, loggers, import hooks and warnings."""
    result = subprocess.run([sys.executable, "-c", CHANGED], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
