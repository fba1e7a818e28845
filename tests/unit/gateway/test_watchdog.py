"""Whom a worker ends when its gateway does not answer."""

from __future__ import annotations

import os
import socket

import pytest

from tailrace.gateway import watchdog


def test_nobody_is_ended_where_no_connection_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the system, process 0 is the whole group of the caller."""
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: ended.append(pid))
    with socket.socket(socket.AF_UNIX) as lonely:
        watchdog.end(lonely)
    assert ended == []


def test_the_process_that_listens_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side of a connection that was made."""
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, signal: ended.append(pid))
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        watchdog.end(one)
    assert ended == [os.getpid()]
