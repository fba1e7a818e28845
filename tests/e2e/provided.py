"""What a cluster must have before the tests: the images on its nodes, and Strimzi's definitions."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e import release as releases
from e2e.images import BUILT, PRODUCT
from support import cluster
from support.helm import SHARED, STRIMZI

REAL = os.environ.get("E2E_STRIMZI") == "real"
CRDS = SHARED / "strimzi" / "crds"


class Unloaded(RuntimeError):
    """An image could not be loaded onto the nodes."""


def load(command: str) -> None:
    """Load each image with this command, and say how long that took."""
    started = time.monotonic()
    for image in (*PRODUCT, *BUILT):
        _load([*shlex.split(command), image])
    print(f"images loaded in {releases.since(started)}", flush=True)  # noqa: T201


def _load(command: list[str]) -> None:
    """Load an image; once more if that fails, because a node may not answer on a busy machine."""
    for _ in range(2):
        ran = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if not ran.returncode:
            return
        print(f"{shlex.join(command)} ended with {ran.returncode}: {ran.stderr}", flush=True)  # noqa: T201
    raise Unloaded(f"{shlex.join(command)} ended with {ran.returncode}: {ran.stderr}")


def defined() -> bool:
    """Return whether the cluster has Strimzi's definitions."""
    return STRIMZI in cluster.kubectl("api-versions").split()


@contextmanager
def definitions() -> Iterator[None]:
    """Provide Strimzi's definitions from files next to the checkout, unless the cluster has them."""
    if REAL or not CRDS.is_dir() or defined():
        yield
        return
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.wait_for_definitions("-f", str(CRDS))
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", str(CRDS), "--wait=true", "--timeout=60s", check=False)
