"""Write an image's bill of materials as CycloneDX 1.6: Debian packages, Python packages, and jars with checksums.

It runs inside the image during the build, with nothing but Python.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

Component = dict[str, Any]


def debian() -> list[Component]:
    """List the packages that dpkg knows."""
    listing = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version}\n"], capture_output=True, text=True, check=True
    )
    found = [line.split() for line in listing.stdout.splitlines()]
    return [component(f"pkg:deb/debian/{name}@{version}", name, version) for name, version in found]


def python() -> list[Component]:
    """List the distributions of this interpreter."""
    found = {(each.metadata["Name"], each.version) for each in metadata.distributions()}
    return [component(f"pkg:pypi/{name.lower()}@{version}", name, version) for name, version in sorted(found)]


def jar(path: Path) -> Component:
    """Describe a jar by its Maven properties, or else by its file name."""
    name, _, version = path.stem.rpartition("-")
    group = None
    with zipfile.ZipFile(path) as archive:
        written = [
            each for each in archive.namelist() if re.fullmatch(r"META-INF/maven/[^/]+/[^/]+/pom.properties", each)
        ]
        if len(written) == 1:
            lines = archive.read(written[0]).decode(errors="replace").splitlines()
            said = dict(line.split("=", 1) for line in lines if "=" in line)
            group, name, version = said.get("groupId"), said.get("artifactId", name), said.get("version", version)
    url = f"pkg:maven/{group}/{name}@{version}" if group else f"pkg:generic/{path.name}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {**component(url, name or path.stem, version), "hashes": [{"alg": "SHA-256", "content": digest}]}


def component(url: str, name: str, version: str) -> Component:
    """Return one component."""
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def main(image: str, out: str, *folders: str) -> None:
    """Write the document for the image."""
    jars = [jar(path) for folder in folders for path in sorted(Path(folder).rglob("*.jar"))]
    parts = {each["bom-ref"]: each for each in [*debian(), *python(), *jars]}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image, "bom-ref": image}},
        "components": list(parts.values()),
    }
    Path(out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{image}: {len(parts)} components, {len(jars)} of them jars\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
