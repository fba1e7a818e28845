"""What tests need once per machine: class archives of Spark and Kafka, and MinIO. `make test` calls it first.

Otherwise some test would wait for minutes while it is made, and the first run on a machine would take longest.
"""

from __future__ import annotations

import subprocess
import sys

from support import archive, minio


def main() -> None:
    """Make what is missing; the tests that need something that cannot be made fail, with a message of their own."""
    archive.make()
    try:
        minio.binary()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"no MinIO ({error}): its tests will fail\n")


if __name__ == "__main__":
    main()
