"""A release on a real Kubernetes, from nothing to nothing: every record once, whoever is killed or replaced meanwhile.

The tests are one story and run in this order. Each counts with an independent reader.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support import cluster
from support.helm import CHART, ROOT
from tailrace.config import Kafka
from tailrace.embedded import EmbeddedKafka
from tailrace.kafka import Cluster
from tailrace.testing import Record, consume, produce, wait_until

pytestmark = [
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
    pytest.mark.timeout(1800),
]

START_LIMIT = 600.0
PARTITIONS = 2
# In Python, so that the executors' workers have their part in it.
MARK = """
from pyspark.sql import functions as F


@F.udf("string")
def marked(value):
    return value + "!"


def mark(rows):
    return rows.select("key", marked(F.col("value").cast("string")).alias("value"))
"""
VALUES = {
    "pipelines": [
        {
            "name": "copies",
            "config": {
                "source": {"topics": ["numbers"]},
                "process": {"function": "mark.py:mark"},
                "sink": {"topic": "marked", "format": "raw"},
                "spark": {"spark.sql.shuffle.partitions": 2},
            },
            "files": {"mark.py": MARK},
        }
    ]
}


@dataclass
class Story:
    """What the tests tell one another."""

    namespace: str
    kafka: EmbeddedKafka
    values: Path
    sent: int = 0
    notes: list[str] = field(default_factory=list)

    def helm(self, *arguments: str) -> str:
        """An install or upgrade of the release with these values besides."""
        files = (CHART / "environments" / "dev.yaml", ROOT / "tests" / "e2e" / "values.yaml", self.values)
        given = [f"--values={file}" for file in files]
        bootstrap = self.kafka.bootstrap_servers
        given += [f"--set=kafka.external.bootstrapServers={bootstrap}"]
        given += [f"--set=kafka.external.network.ports[0]={bootstrap.rpartition(':')[2]}"]
        return cluster.helm(*arguments[:1], "t", str(CHART), "-n", self.namespace, *given, *arguments[1:])

    def send(self, count: int) -> None:
        """More numbers."""
        numbers = range(self.sent, self.sent + count)
        texts = [str(number).encode() for number in numbers]
        produce(self.kafka.bootstrap_servers, "numbers", [Record(text, key=text) for text in texts])
        self.sent += count

    def counted(self) -> tuple[int, int]:
        """How many records are missing, and how many are there more than once."""
        found = Counter(record.value for record in consume(self.kafka.bootstrap_servers, "marked"))
        missing = [n for n in range(self.sent) if f"{n}!".encode() not in found]
        return len(missing), sum(found.values()) - len(found)

    def delivered(self) -> None:
        """Wait until nothing is missing; nothing may be there twice, then or later."""
        try:
            wait_until(lambda: self.counted()[0] == 0, f"{self.sent} records", limit=START_LIMIT, every=1)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log()}") from error
        lost, duplicated = self.counted()
        print(f"{self.sent} sent, {lost} lost, {duplicated} duplicated")  # noqa: T201
        assert (lost, duplicated) == (0, 0)

    def log(self) -> str:
        """What a person would look at."""
        select = ("-l", "tailrace.dev/release=t")
        return "\n".join(
            cluster.kubectl("-n", self.namespace, *command, check=False)
            for command in (
                ("get", "pods", "-o", "wide"),
                ("logs", *select, "--all-containers", "--tail=40"),
                ("get", "events", "--sort-by=.lastTimestamp"),
            )
        )

    def drivers(self) -> list[str]:
        """The pods of drivers that are not on their way out."""
        found = cluster.items("pods", self.namespace, "-l", "tailrace.dev/component=driver")
        return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

    def restarts(self) -> int:
        """How often the driver's container was started again."""
        [pod] = cluster.items("pods", self.namespace, "-l", "tailrace.dev/component=driver")
        return int(pod["status"]["containerStatuses"][0]["restartCount"])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A namespace and a Kafka, without a release."""
    values = tmp_path_factory.mktemp("e2e") / "values.json"
    values.write_text(json.dumps(VALUES), encoding="utf-8")
    with cluster.namespace() as namespace, cluster.kafka() as kafka:
        topics = Cluster(Kafka.model_validate({"bootstrap.servers": kafka.bootstrap_servers}))
        for name in ("numbers", "marked"):
            topics.ensure(name, PARTITIONS, -1, {})
        yield Story(namespace, kafka, values)


def test_a_release_from_nothing_delivers(story: Story) -> None:
    """Helm waits until driver and executors are there, in a namespace that takes restricted pods only."""
    since = time.monotonic()
    try:
        story.helm("install", "--wait", "--timeout=10m")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{story.log()}") from error
    print(f"installed in {time.monotonic() - since:.0f} s")  # noqa: T201
    story.send(1000)
    story.delivered()


def test_executors_are_the_drivers_own(story: Story) -> None:
    """They belong to its pod, and have no token."""
    [driver] = story.drivers()
    executors = cluster.items("pods", story.namespace, "-l", "tailrace.dev/component=executor")
    assert executors
    for each in executors:
        assert [owner["name"] for owner in each["metadata"]["ownerReferences"]] == [driver]
        assert each["spec"]["automountServiceAccountToken"] is False


def test_a_driver_that_is_killed_is_started_again(story: Story) -> None:
    """And its first life's executors are deleted."""
    before = {each["metadata"]["name"] for each in cluster.items("pods", story.namespace, "-l", "spark-role=executor")}
    [driver] = story.drivers()
    story.send(500)
    cluster.kubectl("-n", story.namespace, "exec", driver, "-c", "driver", "--", "sh", "-c", "kill -9 -1", check=False)
    wait_until(lambda: story.restarts() > 0, "the driver's container to be started again", limit=START_LIMIT, every=1)
    story.send(500)
    story.delivered()
    left = {each["metadata"]["name"] for each in cluster.items("pods", story.namespace, "-l", "spark-role=executor")}
    assert not left & before


def test_an_executor_that_is_killed_is_replaced(story: Story) -> None:
    """By the driver."""
    executors = cluster.items("pods", story.namespace, "-l", "tailrace.dev/component=executor")
    story.send(500)
    cluster.kubectl(
        "-n", story.namespace, "delete", "pod", executors[0]["metadata"]["name"], "--grace-period=0", "--force"
    )
    story.send(500)
    story.delivered()


def test_an_upgrade_hands_over(story: Story) -> None:
    """The new driver is ready before the old one goes, and its gap is measured."""
    [old] = story.drivers()
    story.send(500)
    story.helm("upgrade", "--wait", "--timeout=10m", "--set=pipelines[0].config.batch.target=2s")
    wait_until(lambda: old not in story.drivers(), "the old driver to go", limit=START_LIMIT, every=1)
    story.send(500)
    story.delivered()


def test_helm_test_is_content(story: Story) -> None:
    """`tailrace doctor` finds nothing wrong, in a pod as the driver's."""
    print(cluster.helm("test", "t", "-n", story.namespace, "--logs"))  # noqa: T201


def test_nothing_is_left_of_a_release(story: Story) -> None:
    """But what Kubernetes puts into each namespace."""
    cluster.helm("uninstall", "t", "-n", story.namespace, "--wait", "--timeout=5m")

    def left() -> list[str]:
        kinds = "pods,configmaps,secrets,services,serviceaccounts,roles,rolebindings,networkpolicies,deployments,pdb"
        found = cluster.items(kinds, story.namespace)
        names = [f"{each['kind']} {each['metadata']['name']}" for each in found]
        return [name for name in names if name not in {"ConfigMap kube-root-ca.crt", "ServiceAccount default"}]

    wait_until(lambda: not left(), "nothing to be left", limit=120, every=1)
