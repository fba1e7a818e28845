"""Mermaid, which draws the diagrams in the reader's browser: one file of its package, by version and checksum.

npm downloads the package alone, without what it depends on: the file contains all of it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "11.17.2"
SHA256: Final = "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8"
_MEMBER: Final = "package/dist/mermaid.min.js"
_LIMIT: Final = 60.0


def _is_right(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256


def fetched(folder: Path) -> Path:
    """Return the file in the folder; download it if it is missing or another one.

    Raise OSError if it cannot be downloaded, and ValueError if what came is another file.
    """
    file = folder / "mermaid.min.js"
    if file.exists() and _is_right(file.read_bytes()):
        return file
    if shutil.which("npm") is None:
        raise FileNotFoundError("npm is not on the PATH: install Node.js")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = ["npm", "pack", "--loglevel=error", f"mermaid@{VERSION}"]
        try:
            done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_LIMIT, check=False)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"npm has not downloaded mermaid {VERSION} within {_LIMIT:.0f} s") from error
        if done.returncode:
            said = "; ".join(done.stderr.strip().splitlines()[:2])
            raise OSError(f"npm could not download mermaid {VERSION}: {said}")
        [package] = Path(work).glob("*.tgz")
        with tarfile.open(package) as archive:
            member = archive.extractfile(_MEMBER)
            content = member.read() if member else b""
    if not _is_right(content):
        raise ValueError(f"mermaid {VERSION} does not match its checksum in {Path(__file__).name}: nothing was built")
    file.write_bytes(content)
    return file
