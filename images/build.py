"""Build the images one after another, and record what each was made of: `make images`.

BASE, SNAPSHOT, ARCHIVE, JDK and TAG are variables; DOCKER_BUILD holds options for every `docker build`, such as
--network=host. HELM is the program for the operator's image, of the image's system: by default the one on the PATH.
PLATFORMS, such as linux/amd64,linux/arm64, builds for each of them; REGISTRY then joins them under one tag there.
SAME_AS is a folder of an earlier build: the new images must consist of the same packages.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import provenance
from tailrace.version import SEMANTIC

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("spark", "driver", "executor", "operator", "example")  # in this order: later ones build on earlier ones
LIMIT = 900e6
# What Docker calls a processor, by the number that a program for Linux has for it.
MACHINES = {62: "amd64", 183: "arm64"}
_ELF = b"\x7fELF"


def main(asked: Sequence[str]) -> int:
    """Build the named images, or all; return 1 if one is too large or differs from those of SAME_AS."""
    tag, wrong = os.environ.get("TAG", SEMANTIC), list[str]()
    platforms = [each for each in os.environ.get("PLATFORMS", "").split(",") if each]
    tags = [tag if len(platforms) < 2 else f"{tag}-{each.split('/')[1]}" for each in platforms or [""]]
    for platform, own in zip(platforms or [""], tags, strict=True):
        out = ROOT / "build" / "images" / own
        out.mkdir(parents=True, exist_ok=True)
        for name in asked or IMAGES:
            wrong += build(name, own, platform, out)
    if len(platforms) > 1 and "REGISTRY" in os.environ:
        for name in asked or IMAGES:
            join(f"{os.environ['REGISTRY']}/tailrace-{name}", tag, tags, f"tailrace-{name}")
    sys.stderr.writelines(f"{each}\n" for each in wrong)
    return 1 if wrong else 0


def build(name: str, tag: str, platform: str, out: Path) -> list[str]:
    """Build one image, and write its bill of materials and its provenance; return what is wrong with it."""
    revision = git("rev-parse", "HEAD") or "unknown"
    given = {key: os.environ.get(key) for key in ("BASE", "SNAPSHOT", "ARCHIVE", "JDK")}
    given |= {"VERSION": tag, "REVISION": revision}
    given |= {"SPARK": f"tailrace-spark:{tag}", "DRIVER": f"tailrace-driver:{tag}"}
    dockerfile = ROOT / "images" / name / "Dockerfile"
    arguments = {key: given.get(key) or default for key, default in declared(dockerfile.read_text("utf-8")).items()}
    if name == "operator":
        helm(platform)
    image, start, began = f"tailrace-{name}:{tag}", datetime.now(UTC), time.monotonic()
    options = [*shlex.split(os.environ.get("DOCKER_BUILD", "")), *([f"--platform={platform}"] if platform else [])]
    options += [f"--build-arg={key}={value}" for key, value in arguments.items() if value]
    docker("build", *options, "--tag", image, "--file", str(dockerfile), str(ROOT))
    made = inspect(image)
    sys.stdout.write(f"{image}: {made['Size'] / 1e6:.0f} MB, {time.monotonic() - began:.0f} s\n")
    sys.stdout.flush()
    [base] = [arguments[key] for key in ("BASE", "SPARK", "DRIVER") if key in arguments]
    materials = [
        provenance.image(base, inspect(base)),
        provenance.source(revision, git("status", "--porcelain")),
    ]
    materials += [provenance.file(ROOT, path) for path in provenance.LOCKS[name]]
    bill = bill_of(image)
    statement = provenance.statement(
        image, made["Id"], {**arguments, "platform": f"{made['Os']}/{made['Architecture']}"}, materials, bill,
        (start, datetime.now(UTC)),
    )  # fmt: skip
    provenance.write(out, f"tailrace-{name}", statement, bill)
    wrong = [f"{image} is larger than {LIMIT / 1e6:.0f} MB"] if made["Size"] > LIMIT else []
    if "SAME_AS" in os.environ:
        wrong += provenance.differences(Path(os.environ["SAME_AS"]), out, f"tailrace-{name}")
    return wrong


def declared(dockerfile: str) -> dict[str, str]:
    """Return the arguments that a Dockerfile takes, with their defaults."""
    lines = [line[4:].partition("=") for line in dockerfile.splitlines() if line.startswith("ARG ")]
    return {name: default for name, _, default in lines}


def join(repository: str, tag: str, tags: Sequence[str], local: str) -> None:
    """Push the images of each platform, and make one tag that stands for all of them."""
    for each in tags:
        docker("tag", f"{local}:{each}", f"{repository}:{each}")
        docker("push", f"{repository}:{each}")
    docker("buildx", "imagetools", "create", "--tag", f"{repository}:{tag}", *(f"{repository}:{each}" for each in tags))


def helm(platform: str) -> None:
    """Put Helm where the operator's Dockerfile finds it; `{arch}` in HELM is the platform's processor."""
    wanted = platform.split("/")[1] if platform else ""
    given = os.environ.get("HELM") or shutil.which("helm")
    if given is None:
        sys.exit("the operator's image contains Helm, which is not on the PATH. Next: make images HELM=FILE")
    source = Path(given.replace("{arch}", wanted)).resolve()
    content = source.read_bytes()
    if content[:4] != _ELF:
        sys.exit(f"{source} is no program for Linux. Next: make images HELM=FILE, with Helm for the image's system")
    machine = MACHINES.get(int.from_bytes(content[18:20], "little"), "another processor")
    if wanted and machine != wanted:
        sys.exit(
            f"{source} is for {machine}, and the image for {wanted}. Next: make images 'HELM=FOLDER/helm-{{arch}}'"
        )
    made = ROOT / "images" / "operator" / "helm"
    if not made.exists() or made.read_bytes() != content:
        shutil.copy(source, made)
    made.chmod(0o755)


def docker(*arguments: str) -> None:
    """Run Docker."""
    subprocess.run(["docker", *arguments], check=True)


def inspect(image: str) -> dict[str, Any]:
    """Return what Docker knows of an image; BuildKit may have used one without keeping it."""
    command = ["docker", "image", "inspect", image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        docker("pull", "--quiet", image)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)[0]
    return found


def bill_of(image: str) -> bytes:
    """Return an image's bill of materials, without starting anything in it: it may be for another processor."""
    created = subprocess.run(
        ["docker", "create", "--network=none", image, "none"], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        path = f"{created}:/usr/share/doc/tailrace/sbom.cdx.json"
        packed = subprocess.run(["docker", "cp", path, "-"], capture_output=True, check=True).stdout
    finally:
        subprocess.run(["docker", "rm", created], capture_output=True, check=True)
    return provenance.unpacked(packed)


def git(*arguments: str) -> str:
    """Return what Git says about this checkout; nothing outside of one."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
