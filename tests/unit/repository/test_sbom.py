"""The bill of materials of an image names the libraries that a jar bundles, which no other list shows."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    """Load the script, which is in no package."""
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "images" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def write(path: Path, manifest: str, *libraries: tuple[str, str, str]) -> Path:
    """Write a jar with Maven's properties of these libraries."""
    with zipfile.ZipFile(path, "w") as archive:
        if manifest:
            archive.writestr("META-INF/MANIFEST.MF", manifest)
        for group, name, version in libraries:
            text = f"#Created by Maven\ngroupId={group}\nartifactId = {name}\nversion={version}\n"
            archive.writestr(f"META-INF/maven/{group}/{name}/pom.properties", text)
    return path


def test_jar_names_itself_its_licence_and_what_it_bundles(sbom: ModuleType, tmp_path: Path) -> None:
    """A long line of a manifest continues on the next one."""
    manifest = "Manifest-Version: 1.0\r\nBundle-License: https://www.apache.org/lice\r\n nses/LICENSE-2.0.txt\r\n"
    path = write(tmp_path / "client-3.1.jar", manifest, ("org.a", "client", "3.1"), ("com.b", "shaded", "2.0"))
    made = sbom.jar(path)
    assert (made["purl"], made["version"]) == ("pkg:maven/org.a/client@3.1", "3.1")
    assert made["licenses"] == [{"license": {"name": "https://www.apache.org/licenses/LICENSE-2.0.txt"}}]
    [inner] = made["components"]
    assert inner["purl"] == "pkg:maven/com.b/shaded@2.0"
    assert inner["bom-ref"] == "pkg:maven/org.a/client@3.1#pkg:maven/com.b/shaded@2.0"


@pytest.mark.parametrize(
    ("libraries", "url", "bundled"),
    [
        ((), "pkg:generic/plain-1.0.jar", 0),
        ((("org.a", "other", "1.0"),), "pkg:maven/org.a/other@1.0", 0),
        ((("org.a", "b", "1"), ("org.a", "c", "2")), "pkg:generic/plain-1.0.jar", 2),
    ],
)
def test_jar_without_properties_of_its_own_is_named_after_its_file(
    sbom: ModuleType, tmp_path: Path, libraries: tuple[tuple[str, str, str], ...], url: str, bundled: int
) -> None:
    """Unless the only library in it has another name; a jar of several others keeps them as its parts."""
    made = sbom.jar(write(tmp_path / "plain-1.0.jar", "", *libraries))
    assert made["purl"] == url
    assert len(made.get("components", [])) == bundled
    assert "licenses" not in made
