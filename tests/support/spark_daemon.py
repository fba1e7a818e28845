"""The Python daemon of the unit tests' Spark: Tailrace's own, without a gateway."""

from __future__ import annotations

import os
from functools import partial

from pyspark import daemon

from tailrace.gateway.daemon import ENV, keep_archives, load, worker

if __name__ == "__main__":
    daemon.worker = partial(worker, daemon.worker)
    keep_archives()
    load(os.environ.get(ENV, ""))
    daemon.manager()
