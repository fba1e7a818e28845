"""The images that the end-to-end tests need in addition to those of `images/`: a broker, and an S3 server.

`python tests/e2e/images.py` builds them with Docker; DOCKER_BUILD holds options, as for `make images`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.minio import binary
from tailrace import jars
from tailrace.version import SEMANTIC

ROOT = Path(__file__).resolve().parents[2]
BUILT = (f"tailrace-e2e-broker:{SEMANTIC}", f"tailrace-e2e-store:{SEMANTIC}")
PRODUCT = tuple(f"tailrace-{name}:{SEMANTIC}" for name in ("executor", "example", "operator"))


def main() -> None:
    """Build both, each from a folder that holds only its content."""
    for name, image in zip(("broker", "store"), BUILT, strict=True):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            shutil.copytree(ROOT / "tests" / "e2e" / name, folder, dirs_exist_ok=True)
            if name == "broker":
                (folder / "jars").mkdir()
                for jar in jars.ensure("kafka"):
                    shutil.copy(jar, folder / "jars")
            else:
                shutil.copy(binary(), folder / "minio")
            options = shlex.split(os.environ.get("DOCKER_BUILD", ""))
            argument = f"--build-arg=SPARK=tailrace-spark:{SEMANTIC}"
            given = [argument] if name == "broker" else []
            subprocess.run(["docker", "build", *options, *given, "--tag", image, str(folder)], check=True)


if __name__ == "__main__":
    main()
