"""Ask a registry for known vulnerabilities of what is installed from the locked requirements (`make audit`).

pip-audit asks the registry that pip uses. One without such data, as mirrors are, says so for each package: then nothing
is known, which is printed as such and is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCKED = ("runtime.txt", "operator.txt", "zookeeper.txt", "site.txt", "dev.txt")
_LIMIT = 600.0


def ask(tool: Path) -> str:
    """Return the answer of pip-audit, which ends with an error if there are vulnerabilities or nobody answers."""
    files = [word for name in LOCKED for word in ("-r", str(ROOT / "requirements" / name))]
    command = [str(tool), *files, "--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    return done.stdout or done.stderr


def judge(answer: str) -> tuple[list[str], bool]:
    """Return what to print, and whether a vulnerability is known."""
    try:
        found: Sequence[Mapping[str, Any]] = json.loads(answer)["dependencies"]
    except ValueError:
        last = answer.strip().splitlines()[-1:] or ["no answer"]
        return [f"NOT audited: {last[0]}"], False
    packages = {(each["name"], each.get("version", "")): each for each in found}.values()
    known = [each for each in packages if "skip_reason" not in each]
    lines = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for each in known
        for flaw in each["vulns"]
    ]
    if not known:
        return [f"NOT audited: the registry knows nothing about vulnerabilities of the {len(packages)} packages"], False
    summary = f"{len(known)} of {len(packages)} packages audited: {len(lines)} known vulnerabilities"
    return [*lines, summary], bool(lines)


def main() -> int:
    """Audit with the pip-audit that is named; fail if a vulnerability is known."""
    lines, vulnerable = judge(ask(Path(sys.argv[1])))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(vulnerable)


if __name__ == "__main__":
    sys.exit(main())
