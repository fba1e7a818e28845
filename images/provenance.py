"""What an image was made of: an in-toto statement with SLSA's provenance, and the comparison of two builds.

The statement names the base image by digest, the commit, and each list of hashes that the build relied on. The bill of
materials next to it names each package. Two builds with the same packages differ in neither list.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "https://tailrace.dev/make-images/v1"
_JARS = "pipeline/src/tailrace/jars"
# The files by whose hashes an image's contents are checked while it is built.
LOCKS = {
    "spark": ("requirements/build.txt", "requirements/runtime.txt"),
    "driver": ("requirements/build.txt", f"{_JARS}/spark.txt", f"{_JARS}/s3.txt"),
    "executor": ("requirements/build.txt",),
    "operator": ("requirements/build.txt", "requirements/operator.txt", "images/operator/helm"),
    "example": (),
}


def image(reference: str, inspected: Json) -> Json:
    """Describe the image that another was built on: by its registry's digest, or its id if it comes from none."""
    pinned = re.fullmatch(r".+@sha256:([0-9a-f]{64})", reference)
    repository = reference.partition("@")[0].rpartition(":")[0] if not pinned else ""
    digests = [each.rpartition("sha256:")[2] for each in inspected.get("RepoDigests") or () if repository in each]
    digest = pinned[1] if pinned else digests[0] if digests else inspected["Id"].removeprefix("sha256:")
    return {"uri": f"docker:{reference}", "digest": {"sha256": digest}}


def source(revision: str, changed: str) -> Json:
    """Describe the checkout; one with changes is not what its commit says."""
    made: Json = {"name": "source", "digest": {"gitCommit": revision}}
    return {**made, "annotations": {"changed": sorted(line[3:] for line in changed.splitlines())}} if changed else made


def file(root: Path, path: str) -> Json:
    """Describe a file of the checkout."""
    return {"name": path, "digest": {"sha256": hashlib.sha256((root / path).read_bytes()).hexdigest()}}


def statement(
    subject: str,
    identity: str,
    arguments: Mapping[str, str],
    materials: Sequence[Json],
    bill: bytes,
    times: tuple[datetime, datetime],
) -> Json:
    """Return the statement about an image; `identity` is its id, sha256:…"""
    started, finished = (each.strftime("%Y-%m-%dT%H:%M:%SZ") for each in times)
    return {
        "_type": STATEMENT,
        "subject": [{"name": subject, "digest": {"sha256": identity.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": dict(arguments),
                "resolvedDependencies": list(materials),
            },
            "runDetails": {
                "builder": {"id": BUILD},
                "metadata": {"startedOn": started, "finishedOn": finished},
                "byproducts": [{"name": "sbom.cdx.json", "digest": {"sha256": hashlib.sha256(bill).hexdigest()}}],
            },
        },
    }


def write(folder: Path, name: str, made: Json, bill: bytes) -> None:
    """Write the statement and the bill of materials of an image."""
    (folder / f"{name}.provenance.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.cdx.json").write_bytes(bill)


def unpacked(packed: bytes) -> bytes:
    """Return the only file of an archive."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        content = archive.extractfile(archive.getmembers()[0])
        return content.read() if content else b""


def differences(before: Path, after: Path, name: str) -> list[str]:
    """Return what an image was made of in one build and not in the other; nothing if they are the same."""
    missing = [each for each in (f"{name}.provenance.json", f"{name}.cdx.json") if not (before / each).is_file()]
    if missing:
        return [f"{name}: {before} has no {' and no '.join(missing)}"]
    then, now = (_parts(folder, name) for folder in (before, after))
    return [
        f"{name}: {part} was {then.get(part, 'absent')}, and is {now.get(part, 'absent')}"
        for part in sorted(then.keys() | now.keys())
        if then.get(part) != now.get(part)
    ]


def _parts(folder: Path, name: str) -> dict[str, str]:
    """Return each package's version, and the hash of each lock and of the base image."""
    made = json.loads((folder / f"{name}.provenance.json").read_text(encoding="utf-8"))
    bill = json.loads((folder / f"{name}.cdx.json").read_text(encoding="utf-8"))
    needed = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    # The images of one build have tags and ids of their own; their packages are compared one by one.
    found = {
        each.get("name", "base image"): each["digest"]["sha256"]
        for each in needed
        if "sha256" in each["digest"] and not each.get("uri", "").startswith("docker:tailrace-")
    }
    for each in bill["components"]:
        package, _, version = each["purl"].rpartition("@")
        exact = " ".join([version, *(f"sha256:{given['content']}" for given in each.get("hashes", ()))])
        package = package or each["purl"]
        found[package] = f"{found[package]}, {exact}" if package in found else exact
    return found
