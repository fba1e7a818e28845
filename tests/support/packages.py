"""Debian programs that tests need: taken from the PATH, or installed if the tests may do that."""

from __future__ import annotations

import os
import shutil
import subprocess

LIMIT = 900.0
# Setting up a package must neither start a service nor ask a question.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
_PATIENT = ["-o", "DPkg::Lock::Timeout=120"]  # another process may hold the lock


def program(name: str, package: str) -> str:
    """Return the program's path; if it is missing, install its package with apt-get, which needs root."""
    found = shutil.which(name)
    if found is not None:
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise FileNotFoundError(f"the tests need {name}: install the package {package}")
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *_PATIENT, package]):
        done = subprocess.run(
            ["apt-get", *words],
            env={**os.environ, **_QUIET},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"apt-get {' '.join(words)} has failed:\n{done.stderr[-2000:]}")
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"the package {package} does not contain {name}")
    return found
