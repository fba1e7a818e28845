"""An image is made of what was asked for: hashed packages, a chosen base and day, and a record of all of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import provenance

ROOT = Path(__file__).parents[3]
DOCKERFILES = {path.parent.name: path for path in (ROOT / "images").glob("*/Dockerfile")}
COMMIT = re.compile(r"[0-9a-f]{40}")
DIGEST = re.compile(r"[0-9a-f]{64}")
# Stands in for Docker: it notes each command, and knows every image.
DOCKER = """#!{python}
import io, json, os, sys, tarfile
words = sys.argv[1:]
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(words) + "\\n")
if words[:2] == ["image", "inspect"]:
    digests = ["debian@sha256:" + "b" * 64] if words[2].startswith("debian") else []
    print(json.dumps([{{"Id": "sha256:" + "a" * 64, "RepoDigests": digests, "Size": 1000, "Os": "linux",
                        "Architecture": "arm64"}}]))
elif words[0] == "create":
    print("container")
elif words[0] == "cp":
    bill = json.dumps({{"components": [
        {{"purl": "pkg:deb/debian/tini@" + os.environ.get("TINI", "1"), "version": "1"}}]}}).encode()
    entry = tarfile.TarInfo("sbom.cdx.json")
    entry.size = len(bill)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.addfile(entry, io.BytesIO(bill))
"""


class Build:
    """Runs images/build.py with a Docker that only takes notes."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.tag = folder / "notes", f"test-{os.getpid()}"
        self.out = ROOT / "build" / "images"
        docker = folder / "docker"
        docker.write_text(DOCKER.format(python=sys.executable), encoding="utf-8")
        docker.chmod(0o755)
        self._environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "NOTES": str(self.notes)}
        for name in ("BASE", "SNAPSHOT", "PLATFORMS", "REGISTRY", "SAME_AS", "DOCKER_BUILD"):
            self._environment.pop(name, None)

    def __call__(self, *names: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Build the images."""
        return subprocess.run(
            [sys.executable, str(ROOT / "images" / "build.py"), *names],
            env={**self._environment, "TAG": self.tag, **variables},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def commands(self, first: str) -> list[list[str]]:
        """Return the noted commands that begin with a word."""
        lines = [json.loads(line) for line in self.notes.read_text(encoding="utf-8").splitlines()]
        return [words for words in lines if words[0] == first]

    def folder(self, suffix: str = "") -> Path:
        """Return the folder of the records."""
        return self.out / f"{self.tag}{suffix}"


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Return a build, whose records are removed afterwards."""
    made = Build(tmp_path)
    yield made
    for folder in made.out.glob(f"{made.tag}*"):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def text(image: str) -> str:
    """Return a Dockerfile with its continued lines joined."""
    return DOCKERFILES[image].read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.parametrize("image", DOCKERFILES)
def test_image_fetches_nothing_without_a_hash_or_a_signature(image: str) -> None:
    """pip checks hashes, or has no index; it builds with what is installed; apt is called in one place."""
    for command in re.findall(r"pip install [^&\n]+", text(image)):
        offline = {"--no-index", "--no-build-isolation"} <= set(command.split())
        binary = "--only-binary :all:" in command or "requirements/build.txt" in command
        assert offline or ("--require-hashes" in command and binary), command
        assert "--no-binary" not in command or "--no-build-isolation" in command, command
    assert "apt-get" not in text(image)
    assert not re.search(r"\b(curl|wget)\b", text(image))


@pytest.mark.parametrize("image", DOCKERFILES)
def test_image_assumes_no_version_of_debians_python_or_java(image: str) -> None:
    """BASE may be another release of Debian, with a Python and a JDK of its own."""
    assert not re.search(r"python3\.\d|openjdk-\d", text(image))


@pytest.mark.parametrize("image", DOCKERFILES)
def test_each_lock_of_an_image_is_copied_into_its_build(image: str) -> None:
    """The record names the lists by which the contents were checked."""
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text(image), re.MULTILINE) for word in line.split()
    ]
    for lock in provenance.LOCKS[image]:
        assert any(lock == each or lock.startswith(f"{each}/") for each in copied), lock
    named = [each for each in copied if each.startswith("requirements/")]
    assert set(named) <= set(provenance.LOCKS[image])


def packages(folder: Path, release: str, **variables: str) -> tuple[int, str, str]:
    """Run images/packages.sh with an apt that only takes notes; return its exit code, the notes and its error."""
    apt = folder / "apt-get"
    lists = 'for each; do case $each in Dir::Etc::sourcelist=*) cat "${each#*=}" >"$NOTES.list";; esac; done'
    apt.write_text(f'#!/bin/sh\necho "$@" >>"$NOTES"\n{lists}\n', encoding="utf-8")
    (folder / "rm").write_text("#!/bin/sh\n", encoding="utf-8")
    for program in ("apt-get", "rm"):
        (folder / program).chmod(0o755)
    (folder / "os-release").write_text(release, encoding="utf-8")
    done = subprocess.run(
        ["sh", str(ROOT / "images" / "packages.sh"), "tini"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "NOTES": str(folder / "apt"), "ARCHIVE": "http://archive.example",
             "OS_RELEASE": str(folder / "os-release"), **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    notes = folder / "apt"
    return done.returncode, notes.read_text(encoding="utf-8") if notes.exists() else "", done.stderr


def test_packages_come_from_the_base_images_repositories_by_default(tmp_path: Path) -> None:
    """The newest ones, with the security fixes of the day."""
    code, notes, _ = packages(tmp_path, "ID=debian\nVERSION_CODENAME=bookworm\n")
    assert (code, notes) == (0, "update\ninstall -y --no-install-recommends tini\n")


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_packages_come_from_a_day_of_debians_archive_if_asked(tmp_path: Path, release: str) -> None:
    """From there alone, for the release that the base image is."""
    day = "20261101T000000Z"
    code, notes, _ = packages(tmp_path, f"ID=debian\nVERSION_CODENAME={release}\n", SNAPSHOT=day)
    assert code == 0
    for line in notes.splitlines():
        assert "Dir::Etc::sourceparts=-" in line
    places = re.findall(r"\] (\S+) (\S+) main$", (tmp_path / "apt.list").read_text(encoding="utf-8"), re.MULTILINE)
    assert places == [
        (f"http://archive.example/debian/{day}", release),
        (f"http://archive.example/debian/{day}", f"{release}-updates"),
        (f"http://archive.example/debian-security/{day}", f"{release}-security"),
    ]


def test_day_of_debians_archive_is_refused_for_another_system(tmp_path: Path) -> None:
    """Nothing is installed."""
    code, notes, error = packages(tmp_path, "ID=ubuntu\nVERSION_CODENAME=noble\n", SNAPSHOT="20261101T000000Z")
    assert (code, notes) == (1, "")
    assert "the base image is ubuntu" in error


def test_statement_names_base_commit_and_locks(build: Build) -> None:
    """It is an in-toto statement with SLSA's provenance, about the image and its bill of materials."""
    assert build("spark", SNAPSHOT="20261101T000000Z").returncode == 0
    made = json.loads((build.folder() / "tailrace-spark.provenance.json").read_text(encoding="utf-8"))
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert made["subject"] == [{"name": f"tailrace-spark:{build.tag}", "digest": {"sha256": "a" * 64}}]
    definition, run = made["predicate"]["buildDefinition"], made["predicate"]["runDetails"]
    assert definition["externalParameters"]["SNAPSHOT"] == "20261101T000000Z"
    assert definition["externalParameters"]["platform"] == "linux/arm64"
    base, source, *locks = definition["resolvedDependencies"]
    assert base == {"uri": "docker:debian:bookworm-slim", "digest": {"sha256": "b" * 64}}
    assert COMMIT.fullmatch(source["digest"]["gitCommit"])
    assert {each["name"] for each in locks} == set(provenance.LOCKS["spark"])
    for each in locks:
        assert each["digest"]["sha256"] == hashlib.sha256((ROOT / each["name"]).read_bytes()).hexdigest()
    bill = (build.folder() / "tailrace-spark.cdx.json").read_bytes()
    assert run["byproducts"] == [{"name": "sbom.cdx.json", "digest": {"sha256": hashlib.sha256(bill).hexdigest()}}]
    assert run["metadata"]["startedOn"] <= run["metadata"]["finishedOn"]


def test_base_that_names_a_digest_is_used_and_recorded_by_it(build: Build) -> None:
    """Whatever the tag means by now."""
    pinned = f"debian:bookworm-slim@sha256:{'c' * 64}"
    assert build("spark", BASE=pinned).returncode == 0
    assert f"--build-arg=BASE={pinned}" in build.commands("build")[0]
    made = json.loads((build.folder() / "tailrace-spark.provenance.json").read_text(encoding="utf-8"))
    [base, *_] = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert base["digest"] == {"sha256": "c" * 64}


def test_build_that_differs_from_an_earlier_one_fails_with_each_difference(build: Build, tmp_path: Path) -> None:
    """SAME_AS names the records of a release; a package of another version is one line."""
    assert build("spark").returncode == 0
    kept = build.folder().rename(tmp_path / "kept")
    assert build("spark", SAME_AS=str(kept)).returncode == 0
    changed = build("spark", SAME_AS=str(kept), TINI="2")
    assert changed.returncode == 1
    assert changed.stderr == "tailrace-spark: pkg:deb/debian/tini was 1, and is 2\n"
    unknown = build("executor", SAME_AS=str(kept))
    assert unknown.returncode == 1
    assert "has no tailrace-executor.provenance.json" in unknown.stderr


def test_each_platform_is_built_on_its_own_images_and_joined_in_the_registry(build: Build) -> None:
    """A driver for arm64 is built on the base image for arm64."""
    done = build("spark", "executor", PLATFORMS="linux/amd64,linux/arm64", REGISTRY="registry.example/team")
    assert done.returncode == 0, done.stderr
    made = [(words[1], words[words.index("--tag") + 1]) for words in build.commands("build")]
    assert made == [
        (f"--platform=linux/{arch}", f"tailrace-{name}:{build.tag}-{arch}")
        for arch in ("amd64", "arm64")
        for name in ("spark", "executor")
    ]
    assert f"--build-arg=SPARK=tailrace-spark:{build.tag}-arm64" in build.commands("build")[3]
    place = f"registry.example/team/tailrace-executor:{build.tag}"
    assert build.commands("buildx")[1] == [
        "buildx", "imagetools", "create", "--tag", place, f"{place}-amd64", f"{place}-arm64",
    ]  # fmt: skip
    assert (build.folder("-arm64") / "tailrace-executor.provenance.json").is_file()


def test_helm_for_another_processor_is_refused(build: Build, tmp_path: Path) -> None:
    """The operator's image would start, and fail with its first Pipeline."""
    program = tmp_path / "helm-arm64"
    program.write_bytes(b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little"))
    done = build("operator", PLATFORMS="linux/arm64", HELM=str(tmp_path / "helm-{arch}"))
    assert done.returncode == 1
    assert "is for amd64, and the image for arm64" in done.stderr
    assert not build.notes.exists()
