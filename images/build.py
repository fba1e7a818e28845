"""Build the images one after another, and check them against the size limit: `make images`.

BASE, VERSION and TAG are variables; DOCKER_BUILD holds options for every `docker build`, such as --network=host.
HELM is the program for the operator's image, of the image's system: by default the one on the PATH.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("spark", "driver", "executor", "operator", "example")  # in this order: later ones build on earlier ones
LIMIT = 900e6
_ELF = b"\x7fELF"


def main(asked: list[str]) -> int:
    """Build the named images, or all; return 1 if one is too large."""
    tag = os.environ.get("TAG", "0.1.0")
    given = {"BASE": os.environ.get("BASE"), "VERSION": tag, "REVISION": revision()}
    given |= {"SPARK": f"tailrace-spark:{tag}", "DRIVER": f"tailrace-driver:{tag}"}
    large = 0
    for name in asked or IMAGES:
        if name == "operator":
            helm()
        dockerfile = ROOT / "images" / name / "Dockerfile"
        wanted = {
            line.split()[1].partition("=")[0] for line in dockerfile.read_text().splitlines() if line[:4] == "ARG "
        }
        arguments = [f"--build-arg={key}={value}" for key, value in given.items() if value and key in wanted]
        image, since = f"tailrace-{name}:{tag}", time.monotonic()
        options = shlex.split(os.environ.get("DOCKER_BUILD", ""))
        command = ["docker", "build", *options, *arguments, "--tag", image, "--file", str(dockerfile), str(ROOT)]
        subprocess.run(command, check=True)
        inspected = subprocess.run(
            ["docker", "image", "inspect", "--format", "{{.Size}}", image], capture_output=True, text=True, check=True
        )
        size = int(inspected.stdout)
        large += size > LIMIT
        sys.stdout.write(f"{image}: {size / 1e6:.0f} MB, {time.monotonic() - since:.0f} s\n")
        sys.stdout.flush()
    if large:
        sys.stderr.write(f"{large} images are larger than {LIMIT / 1e6:.0f} MB\n")
    return 1 if large else 0


def helm() -> None:
    """Put Helm where the operator's Dockerfile finds it."""
    given = os.environ.get("HELM") or shutil.which("helm")
    if given is None:
        sys.exit("the operator's image contains Helm, which is not on the PATH. Next: make images HELM=FILE")
    source = Path(given).resolve()
    if source.read_bytes()[:4] != _ELF:
        sys.exit(f"{source} is no program for Linux. Next: make images HELM=FILE, with Helm for the image's system")
    made = ROOT / "images" / "operator" / "helm"
    if not made.exists() or made.read_bytes() != source.read_bytes():
        shutil.copy(source, made)
    made.chmod(0o755)


def revision() -> str:
    """Return the commit, for the label."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
