"""Tailrace: PySpark pipelines from Kafka to Kafka, each record exactly once.

The public names. Importing this module imports neither Spark nor Kafka: a name brings what it needs when it is
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.version import VERSION

if TYPE_CHECKING:
    from tailrace.app import run as run
    from tailrace.config import Pipeline as Pipeline
    from tailrace.dropin import exactly_once as exactly_once
    from tailrace.dropin import register as register

__all__ = ["Pipeline", "exactly_once", "register", "run"]
__version__ = VERSION

_LAZY = {
    "Pipeline": "tailrace.config",
    "run": "tailrace.app",
    "exactly_once": "tailrace.dropin",
    "register": "tailrace.dropin",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
