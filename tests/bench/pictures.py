"""The pictures in docs/images: the status page and the dashboards' panels of a running pipeline.

Run it with `make pictures`. panels.py draws the dashboards, because the tests do not include Grafana.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.panels import COLUMN, page
from support.chromium import picture
from support.words import watched_words
from tailrace.testing import wait_until
from tailrace.testing.embedded import EmbeddedKafka

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "charts" / "tailrace" / "dashboards"
IMAGES = ROOT / "docs" / "images"
IDLE = 20.0  # seconds: longer than a batch takes here, and short enough to wait for
SECONDS = float(os.environ.get("PICTURES_SECONDS", "240"))
STATUS = (("light", 1200, 1480, False), ("dark", 1200, 1480, True), ("phone", 390, 2600, False))


def main() -> None:
    """Watch for a while, then write all pictures to IMAGES, or to the folder given as argument."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as name:
        work = Path(name)
        began = time.time()
        with watched_words(kafka.bootstrap_servers, work, idle=IDLE) as watched:
            wait_until(lambda: time.time() - began > SECONDS, "the time to take the pictures", SECONDS + 60, 1.0)
            for which, width, height, dark in STATUS:
                taken = picture(work, watched.url, which, width, height, dark=dark)
                (folder / f"status-{which}.png").write_bytes(taken)
            for file in sorted(DASHBOARDS.glob("*.json")):
                dashboard = json.loads(file.read_text(encoding="utf-8"))
                text, height = page(dashboard, watched.prometheus, began, time.time())
                html = work / f"{file.stem}.html"
                html.write_text(text, encoding="utf-8")
                taken = picture(work, html.as_uri(), file.stem, 24 * COLUMN + 16, height)
                (folder / f"dashboard-{file.stem}.png").write_bytes(taken)
                sys.stdout.write(f"written: {folder / f'dashboard-{file.stem}.png'}\n")


if __name__ == "__main__":
    main()
