"""The documentation's commands, run as printed: the README's own pipeline, and how-tos with a result."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.cli.kafka import create, topics
from tailrace.testing import Topics, consume
from tailrace.testing.embedded import EmbeddedKafka

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
USUAL = "localhost:9092"
LIMIT = 200.0

# A file's name in backticks and a colon, then the file.
FILE = re.compile(r"`([\w.]+)`:\n\n```(?:python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A command, then the text up to the next block, in which the first indented lines are what it prints.
COMMAND = re.compile(r"^```sh\n(.*?)^```$(.*?)(?=^```|\Z)", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
# Parts that differ each time: times, durations, which records are newest, and the port if another process has it.
VARIES = re.compile(
    r"^\d+:\d+ .*$|^port \d+ is taken: .*$|:97[67]\d/|\d+\.\d+|^next: .*$|\d+ ok, \d+ warn", re.MULTILINE
)


def section(page: str, heading: str) -> str:
    """Return the text below a heading of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        pytest.fail(f"{page} has no heading {heading!r}")
    return found[2]


def write(folder: Path, text: str, bootstrap: str) -> list[str]:
    """Write the files that a page shows, for the test's brokers; return their names."""
    files = dict(FILE.findall(text))
    for name, content in files.items():
        (folder / name).write_text(content.replace(USUAL, bootstrap), encoding="utf-8")
    return sorted(files)


def shell(command: str, folder: Path) -> str:
    """Return what a command prints, on both streams; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
    return done.stdout


def commands(text: str) -> list[tuple[str, str]]:
    """Return a page's commands, each with the output that the page shows."""
    return [(each[0], found[0] if (found := INDENTED.search(each[1])) else "") for each in COMMAND.findall(text)]


def lines(text: str) -> list[str]:
    """Return the lines that are the same each time, with normalized spaces."""
    return [" ".join(line.split()) for line in VARIES.sub("*", re.sub(r"(?m)^ {4}", "", text)).splitlines()]


@pytest.mark.takes(35)
def test_pipeline_of_the_readme_does_what_the_readme_shows(tailrace_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Its files and commands print what the README shows, and each order comes out once."""
    bootstrap = tailrace_kafka.bootstrap_servers
    text = section("README.md", "Your own pipeline")
    assert write(tmp_path, text, bootstrap) == ["pipeline.yaml", "totals.py", "write_orders.py"]
    (start, _), *others = commands(text)
    words = shlex.split(start)
    assert words[:2] == ["tailrace", "kafka"]
    create(bootstrap, topics([value for flag, value in pairwise(words) if flag == "--topic"]))
    for command, shown in others:
        printed = lines(shell(command.replace(USUAL, bootstrap), tmp_path))
        missing = [line for line in lines(shown) if line not in printed]
        assert missing == [], f"{command}\n{printed}"
    assert sum(1 for _, shown in others if shown) >= 4
    totals = {each.key: json.loads(each.value or b"") for each in consume(bootstrap, "order-totals")}
    assert totals == {
        b"order-%d" % number: {"id": number, "total": number % 50 * 2.5, "currency": "EUR"}
        for number in range(1000)
        if number % 100 != 99 and number % 50
    }


def test_mistake_in_the_readme_is_reported_as_shown(tmp_path: Path) -> None:
    """The error names the unknown key with its line, and the intended key."""
    text = section("README.md", "Your own pipeline")
    write(tmp_path, text, USUAL)
    file = tmp_path / "pipeline.yaml"
    file.write_text(file.read_text().replace("  topic: order-totals", "  topc: order-totals"))
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", "run", "pipeline.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert lines(done.stderr)[:3] == [
        line for line in lines(text) if "TR-101 " in line or "kept safe" in line or ("next: correct" in line)
    ]


@pytest.mark.slow
def test_tests_of_the_how_to_pass(tmp_path: Path) -> None:
    """Both kinds of tests run in a folder with the README's pipeline, each in its own pytest."""
    write(tmp_path, section("README.md", "Your own pipeline"), USUAL)
    page = "docs/how-to/test-your-pipeline.md"
    for heading, file in (("The complete pipeline", "test_totals.py"), ("The function alone", "test_function.py")):
        found = re.search(r"```python\n(.*?)^```$", section(page, heading), re.MULTILINE | re.DOTALL)
        if found is None:
            pytest.fail(f"{page} shows no test below {heading!r}")
        (tmp_path / file).write_text(found[1], encoding="utf-8")
        assert "1 passed" in shell(f"python -m pytest -p no:cacheprovider {file}", tmp_path)


@pytest.mark.long
def test_batch_job_of_the_how_to_writes_its_rows(tailrace_topics: Topics, tmp_path: Path) -> None:
    """The job that migrates from Spark's Kafka sink has an id, so running it twice delivers once."""
    topic = tailrace_topics("hashtags")
    text = section("docs/how-to/move-from-sparks-kafka-sink.md", "A batch job")
    found = re.search(r"```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        pytest.fail("the page shows no batch job")
    script = found[1].replace(USUAL, tailrace_topics.bootstrap_servers).replace('"hashtags"', f'"{topic}"')
    (tmp_path / "job.py").write_text(script.replace("load-2026-03-01", f"load-{topic}"), encoding="utf-8")
    for _ in range(2):
        shell("python job.py", tmp_path)
    got = [(each.key, each.value) for each in consume(tailrace_topics.bootstrap_servers, topic)]
    assert sorted(got, key=str) == [(b"a", b"first"), (b"b", b"second")]
