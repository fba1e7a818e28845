"""Packaged charts can be signed, and a package that was changed afterwards is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.helm import ROOT, helm, tool

NAME = "tests@tailrace.example"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Generate a key; return the folder of its exported files."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not on the PATH: Helm signs with a key that GnuPG has made")
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)

    def gpg(*arguments: str) -> bytes:
        command = [
            "gpg",
            "--homedir",
            str(home),
            "--batch",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout

    gpg("--quick-generate-key", NAME, "rsa2048", "sign", "1d")
    (tmp_path / "secring.gpg").write_bytes(gpg("--export-secret-keys"))
    (tmp_path / "pubring.gpg").write_bytes(gpg("--export"))
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True, timeout=60)
    return tmp_path


def test_signed_package_is_verified_and_a_changed_one_refused(keys: Path) -> None:
    """Each chart gets its own signature."""
    line = ["make", "--silent", "charts-package", f"HELM={tool('helm')}", f"DIST={keys}", f"KEY={NAME}"]
    subprocess.run(
        [*line, f"KEYRING={keys / 'secring.gpg'}"],
        cwd=ROOT, check=True, capture_output=True, timeout=120, env={**os.environ, "HELM_CACHE_HOME": str(keys)},
    )  # fmt: skip
    packages = sorted(keys.glob("*.tgz"))
    assert all(package.with_name(f"{package.name}.prov").is_file() for package in packages)
    assert len(packages) == 3
    for package in packages:
        done = helm("verify", str(package), "--keyring", str(keys / "pubring.gpg"))
        assert done.returncode == 0, done.stderr
        package.write_bytes(package.read_bytes() + b"x")
        assert helm("verify", str(package), "--keyring", str(keys / "pubring.gpg")).returncode
