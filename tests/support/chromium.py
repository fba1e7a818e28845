"""A page as a headless browser renders it: its elements after the scripts have run, or a screenshot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.packages import program

LIMIT = 120.0
_SETTLED = 5000  # milliseconds of virtual time before the page is captured


def _run(folder: Path, url: str, *options: str) -> str:
    command = [program("chromium", "chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--disable-dev-shm-usage", f"--user-data-dir={folder / 'chromium'}"]
    command += [f"--virtual-time-budget={_SETTLED}", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    return done.stdout


def dom(folder: Path, url: str) -> str:
    """Return the page's elements as text."""
    return _run(folder, url, "--dump-dom")


def picture(folder: Path, url: str, name: str, width: int, height: int, dark: bool = False) -> bytes:
    """Return the page as a PNG."""
    file = folder / f"{name}.png"
    scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    _run(folder, url, f"--window-size={width},{height}", f"--screenshot={file}", *scheme)
    return file.read_bytes()
