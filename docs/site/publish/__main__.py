"""Build the site of the documentation and check it (`make site`): stage the pages, run MkDocs, read what came out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from publish import check, mermaid, versions
from publish.stage import stage

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build"
SITE = BUILD / "site"
_LIMIT = 300.0


def _diagrams() -> Path | None:
    """Return the script that draws the diagrams; without npm, or without its registry, say so and return None."""
    try:
        return mermaid.fetched(BUILD / "mermaid")
    except OSError as error:
        sys.stderr.write(f"diagrams are NOT drawn, only shown as text: {error}\n")
        return None


def _build(tool: str, configuration: Path, folder: Path) -> None:
    """Let MkDocs build the pages into the folder; raise ValueError with its warnings, if it has any."""
    command = [tool, "build", "--strict", "--config-file", str(configuration), "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # about the generator's future, not about the pages
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False, env=quiet)
    if done.returncode:
        lines = done.stderr.splitlines()
        raise ValueError("\n".join(line for line in lines if not line.startswith("INFO")) or done.stderr)


def main() -> int:
    """Build with the MkDocs that is named; fail if a page, a link or a resource is wrong."""
    try:
        version = versions.described((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        configuration = stage(ROOT, BUILD / "site-pages", _diagrams())
        _build(sys.argv[1], configuration, SITE / version.number)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the site was not built: {error}\n")
        return 1
    folders = [each.name for each in SITE.iterdir() if (each / "index.html").exists()]
    (SITE / "versions.json").write_text(versions.menu(folders, version), encoding="utf-8")
    (SITE / "index.html").write_text(versions.first_page(folders), encoding="utf-8")
    problems, summary = check.check(SITE / version.number)
    sys.stdout.writelines(f"{line}\n" for line in [*problems, f"{SITE / version.number}: {summary}"])
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
