"""The consumer of librdkafka's C functions: what its users rely on whatever librdkafka does."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from tailrace.gateway.consuming import Consumer
from tailrace.kafka import clients
from tailrace.testing import wait_until


def test_consumer_that_librdkafka_never_frees_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The real one sometimes does so; a batch, and a driver that was to end, waited for ever."""
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1"})
    free, really = threading.Event(), consumer._library.destroy

    def destroy(handle: int) -> None:
        free.wait(60)
        really(handle)

    monkeypatch.setattr(consumer._library, "destroy", destroy)
    monkeypatch.setattr(clients, "FREE_LIMIT", 0.1)
    closing = threading.Thread(target=consumer.close)
    with caplog.at_level(logging.WARNING):
        closing.start()
        closing.join(5)
        held = closing.is_alive()
        free.set()
        closing.join(30)
    wait_until(
        lambda: all(each.name != "tailrace-within" for each in threading.enumerate()), "the consumer to be freed"
    )
    assert not held
    assert "freeing a consumer: no answer within 0 s" in caplog.text


LEFT = """
from tailrace.gateway.consuming import Consumer

def read():
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1"})
    try:
        yield
    finally:
        consumer.close()

reading = read()
next(reading)
"""


def test_process_ends_although_a_read_was_left_open() -> None:
    """At its end the interpreter closes the read, and starts no thread any more: waiting for one would be for ever."""
    subprocess.run([sys.executable, "-c", LEFT], check=True, timeout=30)
