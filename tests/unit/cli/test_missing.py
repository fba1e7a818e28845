"""Commands on a machine that lacks something: Java, or a package of an extra. Each says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.served import free_port

AVRO = {"topics": ["a"], "format": "avro", "schema": "a.avsc"}
AVRO_SINK = {"topic": "b", "format": "avro", "schema": "a.avsc"}
REGISTRY = {"registry": {"url": "http://127.0.0.1:1"}}
ZOOKEEPER = {"store": "zookeeper", "servers": "localhost:2181"}


def tailrace(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, without JAVA_HOME."""
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *arguments],
        cwd=folder, env=kept | environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", [["kafka", "--port", "PORT"], ["dev"], ["demo", "--for", "1s"]])
def test_command_without_java_names_the_page_with_the_ways_to_get_it(command: list[str], tmp_path: Path) -> None:
    """No traceback: the project's own error, and nothing was started."""
    (tmp_path / "pipeline.yaml").write_text("pipeline: copy\nsource: {topics: [a]}\nsink: {topic: b, format: raw}\n")
    words = [str(free_port()) if word == "PORT" else word for word in command]  # 9092 may be another Kafka's
    done = tailrace(tmp_path, *words, PATH=str(tmp_path))
    assert done.returncode == 6
    assert "TR-501 Java missing: JAVA_HOME is not set, and `java` is not on the PATH" in done.stderr
    assert "kept safe: nothing was started" in done.stderr
    assert "next: install Java 17 or 21; `tailrace explain TR-501` has the command" in done.stderr


def test_page_of_missing_java_has_a_command_for_each_system(tmp_path: Path) -> None:
    """It works without Java, as every page does."""
    page = tailrace(tmp_path, "explain", "TR-501", PATH=str(tmp_path)).stdout
    for command in ("apt install openjdk-17-jre", "dnf install java-21", "brew install openjdk@21", "conda install"):
        assert command in page


def test_doctor_without_java_fails_that_check_and_makes_the_others(tmp_path: Path) -> None:
    """Its line names the page too."""
    done = tailrace(tmp_path, "doctor", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "fail  java" in done.stdout
    assert "tailrace explain TR-501" in done.stdout
    assert "ok    pyspark" in done.stdout


def hide(module: str, folder: Path) -> str:
    """Write a module that raises ImportError, and return the path that puts it before the installed one."""
    (folder / f"{module}.py").write_text(f"raise ImportError({f'no {module}'!r})\n")
    return str(folder)


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [(["demo"], "fastavro", "demo"), (["pipelines", "list"], "kubernetes", "operator")],
)
def test_command_without_its_package_names_the_extra(
    command: list[str], module: str, extra: str, tmp_path: Path
) -> None:
    """The next command is pip's."""
    done = tailrace(tmp_path, *command, PYTHONPATH=hide(module, tmp_path))
    assert done.returncode == 6
    assert f"needs the extra '{extra}', which is not installed: no {module}" in done.stderr
    assert f"next: pip install 'tailrace[{extra}]'" in done.stderr


@pytest.mark.parametrize(
    ("given", "module", "opens", "extra"),
    [
        ({"source": AVRO}, "fastavro", "known.source_format(pipeline.source, folder, jvm=False)", "avro"),
        ({"sink": AVRO_SINK}, "fastavro", "known.sink_format(pipeline.sink, folder)", "avro"),
        ({"sink": AVRO_SINK | REGISTRY}, "cachetools", "known.sink_format(pipeline.sink, folder).prepared()", "avro"),
        ({"offsets": ZOOKEEPER}, "kazoo", "stores.open_store(pipeline, folder)", "zookeeper"),
    ],
)
def test_pipeline_without_its_package_names_the_extra(
    given: dict[str, object], module: str, opens: str, extra: str, tmp_path: Path
) -> None:
    """Only a pipeline that uses the package needs it."""
    plain = {"pipeline": "p", "source": {"topics": ["a"]}, "sink": {"topic": "b", "format": "raw"}}
    code = f"""
import pathlib
from tailrace.config import Pipeline
from tailrace.errors import ExtraMissing
from tailrace.progress import stores
from tailrace.stages.formats import known

folder, pipeline = pathlib.Path({str(tmp_path)!r}), Pipeline.model_validate({plain | given!r})
try:
    {opens}
except ExtraMissing as error:
    print(error)
"""
    (tmp_path / "a.avsc").write_text('{"type": "record", "name": "a", "fields": [{"name": "n", "type": "int"}]}')
    environment = os.environ | {"PYTHONPATH": hide(module, tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert f"needs the extra '{extra}', which is not installed: no {module}" in done.stdout
    assert f"next: pip install 'tailrace[{extra}]'" in done.stdout
