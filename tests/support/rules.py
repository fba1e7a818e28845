"""Rules as a configuration has them, for tests of the stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.config import Process, Rule


def rules(written: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Rule]:
    """Return rules from what `process.validate` would say."""
    return Process.model_validate({"validate": {**(written or {}), **more}}).validate_
