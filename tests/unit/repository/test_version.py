"""The version is written in tailrace.version, and repeated only where no code can read it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from publish import versions
from tailrace.version import DOCUMENTATION, SEMANTIC, VERSION

ROOT = Path(__file__).parents[3]
_CHART = r'^(?:version: |appVersion: ")([^"\n]+)'
# Each file that repeats the version: the places in it, and the spelling, that of Python or that of charts and images.
PLACES = {
    "pipeline/src/tailrace/version.py": (r'^VERSION: Final = "(.+)"', VERSION),
    "pipeline/pyproject.toml": (r'^version = "(.+)"', VERSION),
    "operators/pyproject.toml": (r'^version = "(.+)"|"tailrace==(.+)"', VERSION),
    "docs/how-to/install.md": (r"tailrace-(\S+)-py3", VERSION),
    "docs/how-to/deploy-on-kubernetes.md": (r"^FROM tailrace-\w+:(.+)", SEMANTIC),
    "charts/tailrace/Chart.yaml": (_CHART, SEMANTIC),
    "charts/tailrace-crds/Chart.yaml": (_CHART, SEMANTIC),
    "charts/tailrace-operator/Chart.yaml": (_CHART, SEMANTIC),
    "tests/e2e/stateful.yaml": (r"tailrace-e2e-store, tag: ([^}]+)}", SEMANTIC),
}
# The grammars of PEP 440, without epochs and local parts, and of semantic versions.
PYTHON = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?")
CHARTS = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z]+(\.(0|[1-9]\d*))*)?")


@pytest.mark.parametrize("file", PLACES)
def test_file_repeats_the_version(file: str) -> None:
    """A release changes each of these files."""
    pattern, wanted = PLACES[file]
    found = re.findall(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    assert {"".join(each) for each in found} == {wanted}


def test_no_other_file_repeats_the_version() -> None:
    """It would be forgotten at the next release."""
    spellings = "|".join(map(re.escape, (VERSION, SEMANTIC)))
    pattern = rf"tailrace[a-z-]*(:|==|-|, tag: ?)({spellings})"
    found = subprocess.run(
        ["git", "grep", "--files-with-matches", "--extended-regexp", pattern, "--", ":!CHANGELOG.md"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if found.returncode > 1:
        pytest.skip(f"only a git checkout knows its files: {found.stderr.strip()}")
    assert set(found.stdout.split()) - PLACES.keys() == set()


def test_version_is_one_for_python_and_one_for_charts() -> None:
    """Both name the version at the top of the changelog, which is that of the documentation."""
    assert PYTHON.fullmatch(VERSION)
    assert CHARTS.fullmatch(SEMANTIC)
    described = versions.described((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert re.match(r"[\d.]*\d", VERSION)[0] == described.number  # type: ignore[index]
    assert DOCUMENTATION.endswith(f"/{described.number}/")
    assert ("unreleased" in described.title) == (described.number != VERSION)


@pytest.mark.parametrize("image", ["spark", "driver", "executor", "operator"])
def test_image_gets_its_version_from_the_build(image: str) -> None:
    """images/build.py passes the tag."""
    text = (ROOT / "images" / image / "Dockerfile").read_text(encoding="utf-8")
    assert "ARG VERSION=unknown\n" in text
    assert 'version="${VERSION}"' in text
