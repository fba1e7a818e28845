"""Run the end-to-end tests: on the cluster that KUBECONFIG names, or on a temporary one made by kind.

`python -m e2e` (`make e2e`) passes its arguments on to pytest. E2E_LOAD is the command that loads the images named
after it onto the nodes; if it is unset, they must be there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CLUSTER = "tailrace-e2e"
NEEDED = ("kind", "docker", "kubectl")


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", str(HERE), "-s", *arguments]
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(command, check=False).returncode
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        sys.stderr.write(
            f"KUBECONFIG is not set, and {', '.join(missing)} is not on the PATH to make a cluster.\n"
            "Next: set KUBECONFIG, and E2E_LOAD to the command that loads images onto its nodes; or install kind.\n"
        )
        return 2
    with kind() as variables:
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


@contextmanager
def kind() -> Iterator[Mapping[str, str]]:
    """Make a cluster with kind, and offer the variables that name it."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = str(Path(folder) / "kubeconfig")
        named = ["--name", CLUSTER]
        made = ["kind", "create", "cluster", *named, "--kubeconfig", kubeconfig, "--wait", "5m"]
        try:
            subprocess.run([*made, "--config", str(HERE / "kind.yaml")], check=True)
            yield {"KUBECONFIG": kubeconfig, "E2E_LOAD": f"kind load docker-image --name {CLUSTER}"}
        finally:
            subprocess.run(["kind", "delete", "cluster", *named, "--kubeconfig", kubeconfig], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
