"""A release under test: what a test does to it, what it asks it, and what a person would look at when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import cluster
from support.cluster import Resource
from support.helm import CHART, ROOT
from tailrace.testing import wait_until

NAME = "tailrace"
HAND = "hand"
START_LIMIT = 1200.0
RATE = 50
FEED = 100_000
# Of each pipeline's input: that, where the outputs and the rejected go to.
TOPICS = {
    "tweets": ("tweets", "hashtags", "tweets.rejected"),
    "words": ("words", "counts", "counts.rejected"),
}
# With what every image has, Strimzi's too. All are found first: with the first that dies the container may go.
_KILL = """
for folder in /proc/[0-9]*; do
  id=${folder#/proc/}
  if [ "$id" != 1 ] && [ "$id" != $$ ] && tr '\\0' ' ' 2>/dev/null <"$folder/cmdline" | grep -qF -- "$1"; then
    found="$found $id"
  fi
done
[ -n "$found" ] || { echo nothing to kill >&2; exit 1; }
kill -9 $found
"""
CLIENT = {
    "bootstrap.servers": f"{NAME}-kafka-kafka-bootstrap:9093",
    "security.protocol": "SSL",
    "ssl.ca.location": "/etc/kafka/ca.crt",
    "ssl.certificate.location": "/etc/kafka/user.crt",
    "ssl.key.location": "/etc/kafka/user.key",
}


@dataclass
class Release:
    """One release in its namespace, and how many records were written into each topic."""

    namespace: str
    sent: Counter[str] = field(default_factory=Counter)
    feeds: int = 0

    @classmethod
    def found(cls, namespace: str) -> Release:
        """One that is there already."""
        release = cls(namespace, feeds=int(time.time()) % 10_000_000)
        for topic in TOPICS:
            with suppress(AssertionError):
                release.sent[topic] = release.hand("count", *TOPICS[topic])["in"]
        return release

    def helm(self, act: str, *arguments: str, check: bool = True) -> str:
        """Install or upgrade, with the values of development and those of these tests."""
        files = (CHART / "environments" / "dev.yaml", ROOT / "tests" / "e2e" / "values.yaml")
        values = [f"--values={file}" for file in files]
        values += ["--set=pipelines[0].config.sink.partitions=2"]  # a small machine runs two tasks at a time
        return cluster.helm(act, NAME, str(CHART), "-n", self.namespace, *values, *arguments, check=check)

    def kubectl(self, *arguments: str, check: bool = True, told: str | None = None) -> str:
        """In the release's namespace."""
        return cluster.kubectl("-n", self.namespace, *arguments, check=check, told=told)

    def pods(self, component: str, pipeline: str = "tweets") -> list[Resource]:
        """Those of a pipeline's drivers or executors that are not on their way out."""
        select = f"tailrace.dev/component={component},tailrace.dev/pipeline={pipeline}"
        found = cluster.items("pods", self.namespace, "-l", select)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def driver(self, pipeline: str = "tweets") -> str:
        """The name of the one driver's pod."""
        [pod] = self.pods("driver", pipeline)
        return name(pod)

    def settled(self, pipeline: str = "tweets") -> None:
        """Wait until one driver is there, ready, and leads; and its executors run."""

        def there() -> bool:
            drivers, executors = self.pods("driver", pipeline), self.pods("executor", pipeline)
            return len(drivers) == 1 and ready(drivers[0]) and any(ready(each) for each in executors)

        self.until(there, f"one driver of {pipeline} that is ready, with an executor")

    def until(self, holds: Callable[[], bool], what: str, limit: float = START_LIMIT) -> None:
        """Wait for it; what a person would look at is in the message if it does not come."""
        try:
            wait_until(holds, what, limit=limit, every=1)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.look()}") from error

    @contextmanager
    def feeding(self, topic: str = "tweets", rate: int = RATE) -> Iterator[None]:
        """Records flow while the block runs, and each has been acknowledged when it ends."""
        first = self._first()
        command = ["kubectl", "-n", self.namespace, "exec", "-i", HAND, "--"]
        command += ["python3", "/hand/hand.py", "feed", topic, str(first), str(rate), "0"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        try:
            yield
        finally:
            out, err = process.communicate(timeout=START_LIMIT)
        if process.returncode:
            raise AssertionError(f"the feed of {topic} has failed: {out}{err}")
        self.sent[topic] += int(json.loads(out.splitlines()[-1])["sent"])

    def feed(self, topic: str, count: int, rate: int = 100_000) -> None:
        """As many records at once."""
        self.hand("feed", topic, str(self._first()), str(rate), str(count))
        self.sent[topic] += count

    def _first(self) -> int:
        """The number of a feed's first record; no feed has as many that it comes to another's."""
        self.feeds += 1
        return self.feeds * FEED

    def hand(self, *arguments: str) -> dict[str, int]:
        """What the client beside the brokers says."""
        said = self.kubectl("exec", HAND, "--", "python3", "/hand/hand.py", *arguments)
        found: dict[str, int] = json.loads(said.splitlines()[-1])
        return found

    def count(self, scenario: str, source: str = "tweets") -> None:
        """Wait until nothing is missing; then everything is there once, and nothing else."""
        found: dict[str, int] = {}

        def whole() -> bool:
            found.update(self.hand("count", *TOPICS[source]))
            return found["in"] == self.sent[source] and not found["lost"]

        self.until(whole, f"every record of {source}")
        print(f"{scenario}: {json.dumps(found)}", flush=True)  # noqa: T201
        assert {key: found[key] for key in ("lost", "duplicated", "unexpected")} == {
            "lost": 0,
            "duplicated": 0,
            "unexpected": 0,
        }

    def events(self, pod: str, previous: bool = False) -> list[dict[str, Any]]:
        """What a driver has told so far."""
        more = ["--previous"] if previous else []
        lines = self.kubectl("logs", pod, "-c", "driver", *more, check=False).splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]

    def restarts(self, pipeline: str = "tweets") -> int:
        """How often the driver's container was started again."""
        [pod] = self.pods("driver", pipeline)
        return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses", []))

    def executors(self, pipeline: str = "tweets") -> set[str]:
        """The names of the executors' pods that are not on their way out."""
        return {name(each) for each in self.pods("executor", pipeline)}

    def kill(self, pod: str, container: str, what: str) -> None:
        """End the processes whose command line holds the words, as kill -9 does."""
        self.kubectl("exec", pod, "-c", container, "--", "sh", "-c", _KILL, "kill", what)

    def look(self) -> str:
        """What a person would look at."""
        select = ("-l", f"tailrace.dev/release={NAME}")
        return "\n".join(
            self.kubectl(*command, check=False)[-12_000:]
            for command in (
                ("get", "pods,kafka,kafkatopic,kafkauser", "-o", "wide"),
                ("logs", *select, "--all-containers", "--prefix", "--tail=25"),
                ("get", "events", "--sort-by=.lastTimestamp"),
            )
        )


def name(pod: Resource) -> str:
    """Of the object."""
    return str(pod["metadata"]["name"])


def ready(pod: Resource) -> bool:
    """Whether Kubernetes counts it as ready."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def hand(release: Release) -> None:
    """The pod that feeds and counts, with a user of its own; kafka.strimzi.clients lets it in."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    rights = [
        ({"type": "topic", "name": "*", "patternType": "literal"}, ["Read", "Write", "Describe"]),
        ({"type": "group", "name": HAND, "patternType": "literal"}, ["Read"]),
    ]
    acls = [{"resource": resource, "operations": operations} for resource, operations in rights]
    ca, user = f"{NAME}-kafka-cluster-ca-cert", HAND
    secrets: list[Resource] = [
        {"secret": {"name": ca, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"secret": {"name": user, "items": [{"key": each, "path": each} for each in ("user.crt", "user.key")]}},
    ]
    program = (Path(__file__).parent / "hand.py").read_text(encoding="utf-8")
    cluster.apply(
        release.namespace,
        {
            "apiVersion": "kafka.strimzi.io/v1",
            "kind": "KafkaUser",
            "metadata": {"name": HAND, "labels": {"strimzi.io/cluster": f"{NAME}-kafka"}},
            "spec": {"authentication": {"type": "tls"}, "authorization": {"type": "simple", "acls": acls}},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": HAND},
            "data": {"hand.py": program, "client.json": json.dumps(CLIENT)},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": HAND, "labels": {"app": HAND}},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "fsGroup": 10001,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": HAND,
                        "image": "tailrace-example:0.1.0",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sleep", "infinity"],
                        # Else a busy node lets it starve, and the brokers time out on it.
                        "resources": {"requests": {"cpu": "200m", "memory": "128Mi"}},
                        "securityContext": secure,
                        "volumeMounts": [
                            {"name": "hand", "mountPath": "/hand"},
                            {"name": "kafka", "mountPath": "/etc/kafka"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "hand", "configMap": {"name": HAND}},
                    {"name": "kafka", "projected": {"sources": secrets, "defaultMode": 0o440}},
                ],
            },
        },
    )


@contextmanager
def standin(namespace: str, log: Path) -> Iterator[None]:
    """The stand-in for Strimzi's operators, as a process of its own."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.standin", namespace],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield
        if process.poll() is not None:
            raise AssertionError(f"the stand-in has ended by itself:\n{log.read_text(encoding='utf-8')[-3000:]}")
    finally:
        process.terminate()
        process.wait(30)


def since(start: float) -> str:
    """Seconds, for a person."""
    return f"{time.monotonic() - start:.0f} s"
