"""The command line, with its operations on the ledger in a world's history: `python -m faults.worlds.recorded …`.

A command that moves a pipeline's offsets writes the register that the drivers read afterwards.
"""

from __future__ import annotations

import os
from pathlib import Path

from faults.worlds import history
from tailrace.cli.main import main

if __name__ == "__main__":
    history.record(Path(os.environ[history.HISTORY]))
    main()
