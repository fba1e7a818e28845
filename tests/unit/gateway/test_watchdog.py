"""Which process a worker ends if its gateway does not answer."""

from __future__ import annotations

import os
import socket

import pytest

from tailrace.gateway import watchdog


def test_no_process_is_ended_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the system, process 0 means the caller's entire process group."""
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: ended.append(pid))
    with socket.socket(socket.AF_UNIX) as lonely:
        watchdog.end(lonely)
    assert ended == []


def test_the_process_that_listens_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the other side of an established connection."""
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: ended.append(pid))
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        watchdog.end(one)
    assert ended == [os.getpid()]
