"""Kafka's own verifiable producer and consumer: clients in Java that say of each record what became of it.

They are what Kafka's system tests use, and share no code with librdkafka.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tailrace import jars
from tailrace.testing import wait_until

LIMIT = 60.0
LIST = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class Said:
    """A record, and where it is."""

    key: str | None
    value: str
    partition: int
    offset: int


class Verifiable:
    """One of the two programs. It ends when the block ends."""

    def __init__(self, folder: Path, program: str, *words: str, config: Mapping[str, str]) -> None:
        self._log = folder / f"{program}.jsonl"
        settings = folder / f"{program}.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        path = [*jars.ensure("kafka"), *jars.provide("verifiable", jars.parse(LIST.read_text()))]
        self._command = [
            str(jars.java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-cp", os.pathsep.join(map(str, path)), f"org.apache.kafka.tools.{program}",
            "--command-config", str(settings), *words,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as out, self._log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        self._process = process
        wait_until(lambda: self.said("startup_complete") or process.poll() is not None, f"{self._log.name}", LIMIT)
        if process.poll() is not None:
            text = self._log.with_suffix(".err").read_text(encoding="utf-8")
            raise RuntimeError(f"it ended with {process.returncode}: {text[:500]}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send SIGTERM; the program sends or reports what it still has, and ends."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise

    def said(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far; the last line may not be complete."""
        lines = self._log.read_bytes().split(b"\n")[:-1]
        return [each for each in map(json.loads, lines) if each["name"] == kind]

    def count(self, kind: str) -> int:
        """Count the events of a kind so far, without reading each."""
        return self._log.read_bytes().count(f'"name":"{kind}"'.encode())

    def records(self, kind: str) -> list[Said]:
        """Return the records that the events of a kind are about, in their order."""
        return [Said(each["key"], str(each["value"]), each["partition"], each["offset"]) for each in self.said(kind)]


class VerifiableProducer(Verifiable):
    """Writes the numbers from 0, with repeating keys, and says which of them the brokers have acknowledged."""

    def __init__(self, folder: Path, bootstrap: str, topic: str, rate: int, keys: int = 64) -> None:
        words = "--bootstrap-server", bootstrap, "--topic", topic, "--throughput", str(rate)
        super().__init__(
            folder, "VerifiableProducer", *words, "--repeating-keys", str(keys), config={"retries": "1000"}
        )

    @property
    def acknowledged(self) -> list[Said]:
        """What the brokers have acknowledged."""
        return self.records("producer_send_success")

    @property
    def sent(self) -> int:
        """How many records the brokers have acknowledged."""
        return self.count("producer_send_success")

    def finish(self) -> list[Said]:
        """Stop writing; return what was acknowledged. Nothing may be in doubt."""
        self.stop()
        failed = self.said("producer_send_error")
        if failed:
            raise RuntimeError(f"{len(failed)} records were not acknowledged: {failed[0]}")
        return self.acknowledged


class VerifiableConsumer(Verifiable):
    """Reads a topic from its beginning at read_committed, and says what it got."""

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        words = "--bootstrap-server", bootstrap, "--topic", topic, "--group-id", f"verifiable-{topic}", "--verbose"
        super().__init__(folder, "VerifiableConsumer", *words, config={"isolation.level": "read_committed"})

    @property
    def read(self) -> list[Said]:
        """What it has read."""
        return self.records("record_data")

    def until(self, count: int) -> list[Said]:
        """Wait until it has read so many records, or no more come; return them."""
        last, since = -1, 0

        def over() -> bool:
            nonlocal last, since
            now = self.count("record_data")
            since = since + 1 if now == last else 0
            last = now
            return now >= count or since > 20

        wait_until(over, f"the verifiable consumer to read {count} records", 2 * LIMIT, every=0.5)
        return self.read
