"""Programs of Debian that tests need: taken from the PATH, or installed where the tests may do that."""

from __future__ import annotations

import os
import shutil
import subprocess

LIMIT = 900.0
# Nothing is to be started or asked while a package is set up.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
_PATIENT = ["-o", "DPkg::Lock::Timeout=120"]  # somebody else may be installing something at the same time


def program(name: str, package: str) -> str:
    """Where the program is; where it is missing, its package is installed with apt-get, which needs root."""
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
        raise FileNotFoundError(f"the package {package} has brought no {name}")
    return found
