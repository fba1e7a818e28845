"""Tailrace: PySpark pipelines from Kafka to Kafka, each record exactly once.

The public names. Importing this module imports neither Spark nor Kafka: each name is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.version import VERSION

if TYPE_CHECKING:
    from tailrace.config import Pipeline as Pipeline
    from tailrace.previews.preview import preview as preview
    from tailrace.spark_stream.dropin import exactly_once as exactly_once
    from tailrace.spark_stream.dropin import register as register
    from tailrace.startup.run import run as run

__all__ = ["Pipeline", "exactly_once", "preview", "register", "run"]
__version__ = VERSION

_LAZY = {
    "Pipeline": "tailrace.config",
    "preview": "tailrace.previews.preview",
    "run": "tailrace.startup.run",
    "exactly_once": "tailrace.spark_stream.dropin",
    "register": "tailrace.spark_stream.dropin",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
