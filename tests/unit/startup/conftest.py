"""Fixtures for what runs in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Return a folder with what a kubelet mounts for a service account."""
    (tmp_path / "token").write_text("t0ken\n")
    return tmp_path
