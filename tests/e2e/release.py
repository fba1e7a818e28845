"""A release under test: the actions and queries of the tests, and diagnostics for when one fails."""

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
from tailrace.version import SEMANTIC

NAME = "tailrace"
HAND = "hand"
START_LIMIT = 600.0
RATE = 50
FEED = 100_000
# By source topic: the topics of input, output and rejected records.
TOPICS = {
    "tweets": ("tweets", "hashtags", "tweets.rejected"),
    "words": ("words", "counts", "counts.rejected"),
}
# Uses only what every image has, including Strimzi's. Finds all processes first: the container may end with the first.
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
    """One release in its namespace, and the number of records written to each topic."""

    namespace: str
    sent: Counter[str] = field(default_factory=Counter)
    feeds: int = 0

    @classmethod
    def found(cls, namespace: str) -> Release:
        """Attach to an existing release."""
        release = cls(namespace, feeds=int(time.time()) % 10_000_000)
        for topic in TOPICS:
            with suppress(AssertionError):
                release.sent[topic] = release.hand("count", *TOPICS[topic])["in"]
        return release

    def helm(self, act: str, *arguments: str, check: bool = True) -> str:
        """Install or upgrade, with the values of the dev environment and of these tests."""
        files = (CHART / "environments" / "dev.yaml", ROOT / "tests" / "e2e" / "values.yaml")
        values = [f"--values={file}" for file in files]
        values += ["--set=pipelines.tweets.config.sink.partitions=2"]  # a small machine runs two tasks at a time
        return cluster.helm(act, NAME, str(CHART), "-n", self.namespace, *values, *arguments, check=check)

    def kubectl(self, *arguments: str, check: bool = True, told: str | None = None) -> str:
        """Run kubectl in the release's namespace."""
        return cluster.kubectl("-n", self.namespace, *arguments, check=check, told=told)

    def pods(self, component: str, pipeline: str = "tweets", *, ending: bool = False) -> list[Resource]:
        """Return a pipeline's driver or executor pods; those that are terminating only if asked for."""
        select = f"tailrace.dev/component={component},tailrace.dev/pipeline={pipeline}"
        found = cluster.items("pods", self.namespace, "-l", select)
        return [each for each in found if ending or "deletionTimestamp" not in each["metadata"]]

    def driver(self, pipeline: str = "tweets") -> str:
        """Return the name of the only driver's pod."""
        [pod] = self.pods("driver", pipeline)
        return name(pod)

    def settled(self, pipeline: str = "tweets") -> None:
        """Wait until there is a single driver, which is ready and leads, with a ready executor."""

        def settled() -> bool:
            drivers, executors = self.pods("driver", pipeline), self.pods("executor", pipeline)
            return len(drivers) == 1 and ready(drivers[0]) and any(ready(each) for each in executors)

        self.until(settled, f"one ready driver of {pipeline}, with an executor")

    def until(self, holds: Callable[[], bool], what: str, limit: float = START_LIMIT) -> None:
        """Wait until the condition holds; on timeout, fail with diagnostics."""
        try:
            wait_until(holds, what, limit=limit, every=1)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.look()}") from error

    @contextmanager
    def feeding(self, topic: str = "tweets", rate: int = RATE) -> Iterator[None]:
        """Feed records while the block runs; all are acknowledged when it ends."""
        first = self._first()
        command = ["kubectl", "-n", self.namespace, "exec", "-i", HAND, "--"]
        command += ["python3", "/hand/hand.py", "feed", topic, str(first), str(rate), "0"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        try:
            yield
        finally:  # a test that fails inside has sent records, too: the next one counts them
            out, err = process.communicate(timeout=START_LIMIT)
            if process.returncode:
                raise AssertionError(f"the feed of {topic} failed: {out}{err}")
            self.sent[topic] += int(json.loads(out.splitlines()[-1])["sent"])

    def feed(self, topic: str, count: int, rate: int = 100_000) -> None:
        """Feed this many records at once."""
        self.hand("feed", topic, str(self._first()), str(rate), str(count))
        self.sent[topic] += count

    def _first(self) -> int:
        """Return the number of a new feed's first record; no feed is long enough to reach the next one's."""
        self.feeds += 1
        return self.feeds * FEED

    def hand(self, *arguments: str) -> dict[str, int]:
        """Run hand.py in its pod, and return its answer."""
        output = self.kubectl("exec", HAND, "--", "python3", "/hand/hand.py", *arguments)
        found: dict[str, int] = json.loads(output.splitlines()[-1])
        return found

    def count(self, scenario: str, source: str = "tweets") -> None:
        """Wait until no output is missing; then check that each came out once, and nothing else did."""
        found: dict[str, int] = {}

        def complete() -> bool:
            found.update(self.hand("count", *TOPICS[source]))
            return found["in"] == self.sent[source] and not found["lost"]

        self.until(complete, f"every record of {source}")
        print(f"{scenario}: {json.dumps(found)}", flush=True)  # noqa: T201
        assert {key: found[key] for key in ("lost", "duplicated", "unexpected")} == {
            "lost": 0,
            "duplicated": 0,
            "unexpected": 0,
        }

    def events(self, pod: str, previous: bool = False) -> list[dict[str, Any]]:
        """Return the events that a driver has reported so far."""
        more = ["--previous"] if previous else []
        lines = self.kubectl("logs", pod, "-c", "driver", *more, check=False).splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]

    def restarts(self, pipeline: str = "tweets") -> int:
        """Return the number of restarts of the driver's container."""
        [pod] = self.pods("driver", pipeline)
        return restarts(pod)

    def flows(self) -> int:
        """Wait until there is output that is newer than now; return now, in milliseconds."""
        now = int(time.time() * 1000)
        self.until(lambda: self.hand("silence", "hashtags", str(now))["records"] > 0, "records to flow")
        return now

    def gap(self, since: int) -> float:
        """Return the longest silence of the output since then, in seconds."""
        return self.hand("silence", "hashtags", str(since))["longest"] / 1000

    def evict(self, pod: str) -> None:
        """Evict a pod, as the drain of its node does; a disruption budget may refuse that."""
        about = {"name": pod, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", told=json.dumps(eviction))

    def pod(self, name: str) -> Resource:
        """Return a pod by its name."""
        [found] = cluster.items("pods", self.namespace, f"--field-selector=metadata.name={name}")
        return found

    def executors(self, pipeline: str = "tweets") -> set[str]:
        """Return the names of the executor pods that are not terminating."""
        return {name(each) for each in self.pods("executor", pipeline)}

    def kill(self, pod: str, container: str, what: str) -> None:
        """Kill -9 the processes whose command line contains `what`."""
        self.kubectl("exec", pod, "-c", container, "--", "sh", "-c", _KILL, "kill", what)

    def look(self) -> str:
        """Collect diagnostics: the state, logs and events of the release."""
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
    """Return the pod's name."""
    return str(pod["metadata"]["name"])


def gone(pod: str, namespace: str) -> bool:
    """Tell whether a pod no longer exists."""
    return not cluster.items("pods", namespace, f"--field-selector=metadata.name={pod}")


def restarts(pod: Resource) -> int:
    """Return the number of restarts of the pod's containers."""
    return sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses", []))


def revision(pod: Resource) -> str:
    """Return the name of the revision that a driver's pod mounts."""
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "pipeline"]
    return str(volume["configMap"]["name"])


def ready(pod: Resource) -> bool:
    """Tell whether the pod is ready."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def hand(release: Release) -> None:
    """Create the pod that feeds and counts, with its own user; kafka.strimzi.clients lets it in."""
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
                        "image": f"tailrace-example:{SEMANTIC}",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sleep", "infinity"],
                        # Otherwise it starves on a busy node, and the brokers time it out.
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
    """Run the stand-in for Strimzi's operators as a separate process."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.standin", namespace],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield
        if process.poll() is not None:
            raise AssertionError(f"the stand-in ended by itself:\n{log.read_text(encoding='utf-8')[-3000:]}")
    finally:
        process.terminate()
        process.wait(30)


def since(start: float) -> str:
    """Format the seconds since `start`."""
    return f"{time.monotonic() - start:.0f} s"
