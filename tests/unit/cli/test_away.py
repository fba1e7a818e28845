"""Commands whose other side is away, cut off, or something else: an error with a code, and no traceback."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes.config import kube_config
from typer.testing import CliRunner

from tailrace.admin import rejected
from tailrace.cli.main import app
from tailrace.errors import ClusterRefused, ConfigInvalid, DriverUnreachable
from tailrace.kafka.reader import Message
from tailrace.kafka.rejected_headers import HEADER_AT, HEADER_REASON

_LIMIT = 60.0


@contextmanager
def answering(answer: Callable[[socketserver.BaseRequestHandler], None]) -> Iterator[str]:
    """Serve every connection so, and return the server's URL."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer(self)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def cut_off(handler: socketserver.BaseRequestHandler) -> None:
    """Promise more than comes."""
    handler.request.recv(4096)
    handler.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{")


def other(handler: socketserver.BaseRequestHandler) -> None:
    """Answer as no HTTP server does."""
    handler.request.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def cluster(folder: Path, url: str, patch: pytest.MonkeyPatch) -> None:
    """Write a kubeconfig with such an API server, and use it."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "streams"}}],
    }  # fmt: skip
    (folder / "config").write_text(yaml.safe_dump(config))
    # The client has read KUBECONFIG when it was imported.
    patch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "config"))


@pytest.mark.parametrize(
    "command", [["list"], ["suspend", "orders"], ["logs", "orders"]], ids=["list", "suspend", "logs"]
)
def test_api_server_that_is_away_is_an_error_with_a_code(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises urllib3's own errors for it, which are no OSError."""
    cluster(tmp_path, "http://127.0.0.1:1", monkeypatch)
    with pytest.raises(ClusterRefused, match="no answer"):
        CliRunner().invoke(app, ["pipelines", *command], catch_exceptions=False)


def test_change_without_an_answer_may_have_been_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have done it before the connection was lost."""
    with answering(cut_off) as url:
        cluster(tmp_path, url, monkeypatch)
        with pytest.raises(ClusterRefused) as raised:
            CliRunner().invoke(app, ["pipelines", "suspend", "orders"], catch_exceptions=False)
    assert "may have been changed" in raised.value.kept


@pytest.mark.parametrize("answer", [cut_off, other])
def test_server_that_is_no_driver_is_an_error_with_a_code(
    answer: Callable[[socketserver.BaseRequestHandler], None],
) -> None:
    """A driver may die while it answers, and its neighbour's port may be anything."""
    with answering(answer) as url, pytest.raises(DriverUnreachable, match="no driver answers"):
        CliRunner().invoke(app, ["status", url], catch_exceptions=False)


def test_result_is_written_in_what_the_output_can_encode() -> None:
    """A terminal without a character of it, or half a character in it, stops no command."""
    code = "from tailrace.cli.terminal import emit; emit({'a': '\\ud83d', 'b': '→', 'c': '\\U0001f600'})"
    for encoding in ("utf-8", "latin-1"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True, text=True, timeout=_LIMIT, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout) == {"a": "\ud83d", "b": "→", "c": "\U0001f600"}


def test_folder_that_cannot_be_written_is_named() -> None:
    """A project is written where there is a place for it."""
    with pytest.raises(ConfigInvalid, match="cannot be written"):
        CliRunner().invoke(app, ["init", "orders", "--folder", "/proc/orders"], catch_exceptions=False)


def test_newest_rejected_records_are_shown_whatever_partition_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are read one after another, so the last records of the topic are not its newest."""

    def record(partition: int, offset: int, at: int) -> Message:
        headers = ((HEADER_AT, b"%d" % at), (HEADER_REASON, b"not json"))
        return Message("bad", partition, offset, 0, None, None, headers)

    new = [record(0, offset, 1_800_000_000_000 + offset * 1000) for offset in range(5)]
    old = [record(1, offset, 1_700_000_000_000) for offset in range(50)]
    monkeypatch.setattr(rejected.Target, "records", lambda *_: iter([*new, *old]))
    for limit, wanted in ((3, [2, 3, 4]), (0, [])):
        told = CliRunner().invoke(
            app, ["rejected", "list", "--topic", "bad", "-b", "x:1", "--limit", str(limit), "-o", "json"],
            catch_exceptions=False,
        )  # fmt: skip
        found = json.loads(told.stdout)
        assert [(each["partition"], each["offset"]) for each in found["records"]] == [(0, each) for each in wanted]
        assert found["total"] == 55
