"""The wheel in an empty environment, outside the repository: all that a person has who installed Tailrace with pip."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tailrace.testing import Topics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
LIMIT = 400.0  # on a busy machine, with packages to download


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a folder to work in."""

    home: Path
    wheel: Path

    def install(self, extra: str) -> None:
        """Install the wheel with an extra, at the locked versions."""
        wanted = [f"tailrace[{extra}] @ {self.wheel.as_uri()}", "--constraint", str(ROOT / "requirements" / "dev.txt")]
        _done(UV, "pip", "install", "--quiet", "--python", str(self.home / "env"), *wanted)

    def run(self, folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder, with nothing of this repository in its way."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return subprocess.run(
            [str(self.home / "env" / "bin" / command[0]), *command[1:]],
            cwd=folder, env=mine | more, capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip


def _done(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheels as users get them, and install the core one, with pytest alone on top."""
    home = tmp_path_factory.mktemp("wheel")
    _done("make", "package", f"DIST={home / 'dist'}")
    _done(UV, "venv", "--quiet", "--python", sys.executable, str(home / "env"))
    [wheel] = (home / "dist").glob("tailrace-*.whl")
    made = Installed(home, wheel)
    made.install("testing")
    return made


@pytest.mark.takes(60)
def test_project_of_the_wheel_passes_its_own_test(installed: Installed, tmp_path: Path) -> None:
    """The core, with pytest, runs a JSON pipeline on a real Kafka: templates and lists of jars are in the wheel."""
    done = installed.run(tmp_path, "tailrace", "init", "orders")
    assert done.returncode == 0, done.stderr
    done = installed.run(tmp_path / "orders", "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    where = installed.run(tmp_path, "python", "-c", "import tailrace; print(tailrace.__file__)").stdout
    assert where.startswith(str(installed.home))


@pytest.mark.takes(50)
def test_avro_and_the_demo_come_with_their_extra(installed: Installed, tailrace_topics: Topics, tmp_path: Path) -> None:
    """Without it doctor, run and demo name it; with it the demo proves its output: its examples are in the wheel."""
    assert installed.run(tmp_path, "tailrace", "init", "orders", "--format", "avro").returncode == 0
    settings = {
        "TAILRACE_KAFKA__BOOTSTRAP_SERVERS": tailrace_topics.bootstrap_servers,
        "TAILRACE_SOURCE__TOPICS": f"[{tailrace_topics('in')}]",
        "TAILRACE_SINK__TOPIC": tailrace_topics("out"),
    }
    checked = installed.run(tmp_path, "tailrace", "doctor", "orders/pipeline.yaml", **settings)
    assert checked.returncode == 1
    assert "the format avro needs the extra 'avro', which is not installed" in checked.stdout
    started = installed.run(tmp_path, "tailrace", "run", "orders/pipeline.yaml", "--batch", **settings)
    assert started.returncode == 6
    assert "next: pip install 'tailrace[avro]'" in started.stderr
    refused = installed.run(tmp_path, "tailrace", "demo", "--for", "3s")
    assert refused.returncode == 6
    assert "next: pip install 'tailrace[demo]'" in refused.stderr

    installed.install("demo")
    done = installed.run(tmp_path, "tailrace", "demo", "--for", "3s", "--rate", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 duplicated" in done.stdout
