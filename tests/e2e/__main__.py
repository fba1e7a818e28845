"""Run the end-to-end tests: on the cluster that KUBECONFIG names, or on a temporary one made by kind.

`python -m e2e` (`make e2e`) passes its arguments on to pytest. E2E_LOAD is the command that loads the images named
after it onto the nodes; if it is unset, they must be there already. Without a selection, all modules run, two of them
at the same time (`together`).
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

from e2e import provided
from e2e.together import together

HERE = Path(__file__).parent
CLUSTER = "tailrace-e2e"
NEEDED = ("kind", "docker", "kubectl")


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit code."""
    if os.environ.get("KUBECONFIG"):
        return run(arguments)
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        sys.stderr.write(
            f"KUBECONFIG is not set, and {', '.join(missing)} is not on the PATH to make a cluster.\n"
            "Next: set KUBECONFIG, and E2E_LOAD to the command that loads images onto its nodes; or install kind.\n"
        )
        return 2
    with kind() as variables:
        os.environ.update(variables)
        return run(arguments)


def run(arguments: list[str]) -> int:
    """Run what the arguments select, or everything; return pytest's exit code."""
    if any(not each.startswith("-") or each.startswith("-k") for each in arguments):
        return subprocess.run([sys.executable, "-m", "pytest", str(HERE), "-s", *arguments], check=False).returncode
    command = os.environ.get("E2E_LOAD")
    if command:
        provided.load(command)
    with provided.definitions():
        return together(arguments, {name: value for name, value in os.environ.items() if name != "E2E_LOAD"})


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
