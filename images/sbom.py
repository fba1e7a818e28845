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
from functools import partial
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
    """Describe a jar by its own Maven properties, or else by its file name, with the libraries bundled in it."""
    name, _, version = path.stem.rpartition("-")
    with zipfile.ZipFile(path) as archive:
        libraries = [each for each in map(partial(library, archive), sorted(archive.namelist())) if each]
        stated = licences(archive)
    own = [each for each in libraries if path.stem in {each["name"], f"{each['name']}-{each['version']}"}]
    if not own and len(libraries) == 1:
        own = libraries
    made = own[0] if own else component(f"pkg:generic/{path.name}", name or path.stem, version)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    bundled = [each for each in libraries if each is not made]
    return {
        **made,
        **({"licenses": stated} if stated else {}),
        "hashes": [{"alg": "SHA-256", "content": digest}],
        # One library may be bundled in several jars, and a reference has to be unique.
        **(
            {"components": [{**each, "bom-ref": f"{made['bom-ref']}#{each['purl']}"} for each in bundled]}
            if bundled
            else {}
        ),
    }


def library(archive: zipfile.ZipFile, entry: str) -> Component | None:
    """Describe the library whose Maven properties this entry of a jar holds; None for other entries."""
    found = re.fullmatch(r"META-INF/maven/([^/]+)/([^/]+)/pom.properties", entry)
    if not found:
        return None
    lines = archive.read(entry).decode(errors="replace").splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    group, name = said.get("groupId", found[1]), said.get("artifactId", found[2])
    version = said.get("version", "")
    return component(f"pkg:maven/{group}/{name}@{version}", name, version)


def licences(archive: zipfile.ZipFile) -> list[dict[str, Any]]:
    """Return the licence that a jar's manifest states."""
    try:
        manifest = archive.read("META-INF/MANIFEST.MF").decode(errors="replace")
    except KeyError:
        return []
    lines = re.sub(r"\r?\n ", "", manifest).splitlines()  # a long value continues on the next line
    stated = [line.partition(": ")[2] for line in lines if line.startswith("Bundle-License: ")]
    return [{"license": {"name": each.strip()}} for each in stated if each.strip()]


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
