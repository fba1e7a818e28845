"""A Pipeline resource under test: the operator as a process on this machine, and what it shares with all pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.release import NAME, Release, name, ready
from support import cluster
from support.helm import CHART, ROOT, tool
from support.served import free_port
from tailrace.config.resource import GROUP, KIND, OPERATIONS, OWNER, PLURAL, VERSION

PIPELINE = "tweets"
# A change that concerns the values of some records and no keys: the second hashtag of each tweet in upper case.
LOUDER: dict[str, Any] = {
    "config": {"process": {"function": "louder.py:hashtags"}},
    "files": {
        "louder.py": """
from pyspark.sql import functions as F

def hashtags(tweets):
    each = tweets.select("id", "user", "created_at", F.posexplode("hashtags").alias("position", "tag"))
    tag = F.when(F.col("position") == 1, F.upper("tag")).otherwise(F.lower("tag")).alias("tag")
    key = F.concat_ws("#", "id", "position").alias("key")
    return each.select(key, tag, F.col("id").alias("tweet_id"), "position", "user", "created_at")
"""
    },
}
_DEFINITION = [sys.executable, "-m", "tailrace_operator.crd", str(CHART / "values.schema.json")]


@dataclass
class Operator:
    """The operator's process, killed and started by the tests; it watches one namespace."""

    namespace: str
    folder: Path
    platform: Path
    port: int = 0
    kubeconfig: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.port = free_port(2)  # /healthz has the next one
        command = [sys.executable, "-m", "tailrace_operator", "--chart", str(CHART), "--platform", str(self.platform)]
        command += ["--helm", str(tool("helm")), "--namespace", self.namespace, "--port", str(self.port)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, **({"KUBECONFIG": self.kubeconfig} if self.kubeconfig else {})},
            )

    def kill(self) -> None:
        """End it at once, in whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    @property
    def _log(self) -> Path:
        return self.folder / "operator.log"

    def log(self) -> str:
        """Return the end of its log."""
        return self._log.read_text(encoding="utf-8")[-6000:] if self._log.exists() else ""


@dataclass
class Operated(Release):
    """A release without pipelines, and Pipelines beside it."""

    operator: Operator = field(default_factory=lambda: Operator("", Path(), Path()))

    def apply(self, spec: Mapping[str, Any], pipeline: str = PIPELINE) -> None:
        """Apply a Pipeline, as a person or a GitOps tool does."""
        cluster.apply(self.namespace, resource(pipeline, spec))

    def body(self, pipeline: str = PIPELINE) -> dict[str, Any]:
        """Return a Pipeline."""
        found: dict[str, Any] = json.loads(self.kubectl("get", PLURAL, pipeline, "-o", "json"))
        return found

    def status(self, pipeline: str = PIPELINE) -> dict[str, Any]:
        """Return the status of a Pipeline; empty if there is none yet."""
        found: dict[str, Any] = self.body(pipeline).get("status", {})
        return found

    def condition(self, kind: str, pipeline: str = PIPELINE) -> dict[str, Any]:
        """Return a condition of a Pipeline."""
        [found] = [each for each in self.status(pipeline)["conditions"] if each["type"] == kind]
        assert isinstance(found, dict)
        return found

    def holds(self, kind: str, pipeline: str = PIPELINE) -> bool:
        """Tell whether a condition of a Pipeline is there, and holds."""
        found = self.status(pipeline).get("conditions", ())
        return any(each["type"] == kind and each["status"] == "True" for each in found)

    def pipelines(self) -> set[str]:
        """Return the names of all Pipelines."""
        return {name(each) for each in cluster.items(PLURAL, self.namespace)}

    def operation(self, name: str) -> dict[str, Any]:
        """Return the status of an operation."""
        found = json.loads(self.kubectl("get", OPERATIONS, name, "-o", "json"))
        made: dict[str, Any] = {"phase": "", **found.get("status", {})}
        return made

    def phase(self, wanted: str, pipeline: str = PIPELINE) -> None:
        """Wait until a Pipeline is in a phase, as its newest spec has it."""

        def there() -> bool:
            found = self.body(pipeline)
            status = found.get("status", {})
            seen = status.get("observedGeneration") == found["metadata"]["generation"]
            return bool(seen and status.get("phase") == wanted)

        self.until(there, f"{pipeline} to be {wanted}")

    def deployment(self, pipeline: str = PIPELINE) -> dict[str, Any]:
        """Return the Deployment of a Pipeline's driver."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "deployment", pipeline, "-o", "json"))
        return found

    def live(self, pipeline: str = PIPELINE) -> str:
        """Return the number of executors that a running driver is asked for."""
        body = json.loads(self.kubectl("get", "configmap", f"{pipeline}-live", "-o", "json"))
        return str(body["data"]["executors"])

    def told(self, reason: str, pipeline: str = PIPELINE) -> str:
        """Return the messages of a Pipeline's Events with this reason."""
        found = cluster.items(
            "events", self.namespace, f"--field-selector=involvedObject.name={pipeline},reason={reason}"
        )
        return "\n".join(str(each["message"]) for each in found)

    def topics(self) -> set[str]:
        """Return the topics that Strimzi manages."""
        return {str(each["spec"]["topicName"]) for each in cluster.items("kafkatopics", self.namespace)}

    def single(self) -> bool:
        """Tell whether there is a single driver, and it is ready."""
        drivers = self.pods("driver")
        return len(drivers) == 1 and ready(drivers[0])

    def look(self) -> str:
        """Collect diagnostics."""
        select = ("-l", f"tailrace.dev/pipeline={PIPELINE}")
        commands = (
            ("get", f"pods,deployments,{PLURAL},kafkauser,kafkatopic", "-o", "wide"),
            ("get", PLURAL, PIPELINE, "-o", "yaml"),
            ("logs", *select, "--all-containers", "--prefix", "--tail=25"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        )
        parts = [self.kubectl(*command, check=False)[-8_000:] for command in commands]
        return "\n".join([*parts, self.operator.log()])


def resource(pipeline: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Pipeline."""
    made = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": pipeline}}
    return {**made, "spec": dict(spec)}


def spec() -> dict[str, Any]:
    """Return the spec of the dev environment's pipeline; a small machine runs two tasks at a time."""
    made: dict[str, Any] = _dev()["pipelines"]["tweets"]
    made["config"]["sink"]["partitions"] = 2
    made["progressDeadlineSeconds"] = 400  # a hand-over takes up to two minutes where other tests run beside it
    return made


def changed(**sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return that spec with keys of its configuration changed."""
    made = spec()
    for section, values in sections.items():
        made["config"].setdefault(section, {}).update(values)
    return made


def platform() -> dict[str, Any]:
    """Return what pipelines share: the release's Kafka, and the defaults of the dev environment."""
    data = _dev()
    kafka = {"mode": "strimzi", "strimzi": {"create": False, "cluster": f"{NAME}-kafka"}}
    return {"images": data["images"], "kafka": kafka, "pipelineDefaults": data["pipelineDefaults"]}


def _dev() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for file in (CHART / "environments" / "dev.yaml", ROOT / "tests" / "e2e" / "values.yaml"):
        for key, value in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            made[key] = _merged(made.get(key), value)
    return deepcopy(made)


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return {key: _merged(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}
    return above


@contextmanager
def definition() -> Iterator[None]:
    """Provide the definition of the Pipeline."""
    made = subprocess.run(_DEFINITION, capture_output=True, text=True, check=True).stdout
    cluster.kubectl("apply", "--server-side", "-f", "-", told=made)
    cluster.wait_for_definitions(f"crd/{PLURAL}.{GROUP}")
    try:
        yield
    finally:
        names = [f"crd/{plural}.{GROUP}" for plural in (PLURAL, OPERATIONS)]
        cluster.kubectl("delete", *names, "--wait=true", "--timeout=60s", check=False)


@contextmanager
def between(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Run a proxy to the API server, which can be stopped; yield a kubeconfig that names it, and its process."""
    port, file = free_port(), folder / "kubeconfig"
    process = subprocess.Popen(["kubectl", "proxy", f"--port={port}"], stdout=subprocess.DEVNULL)
    about = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        "current-context": "proxy",
    }
    file.write_text(yaml.safe_dump(about), encoding="utf-8")
    try:
        yield file, process
    finally:
        process.kill()
        process.wait(30)


def install(namespace: str) -> None:
    """Install the operator's chart, for this namespace alone."""
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "values.yaml"
        values.write_text(yaml.safe_dump({"namespaces": [namespace], "platform": platform()}), encoding="utf-8")
        arguments = ["operator", str(CHART.parent / "tailrace-operator"), "-n", namespace, f"--values={values}"]
        cluster.helm("install", *arguments, "--wait", "--timeout=3m")


def owned(namespace: str, pipeline: str = PIPELINE) -> list[str]:
    """Return what exists of a Pipeline, but for its topics."""
    kinds = "deployments,configmaps,serviceaccounts,roles,rolebindings,services,networkpolicies,poddisruptionbudgets"
    kinds += ",kafkausers,controllerrevisions"
    found = json.loads(cluster.kubectl("-n", namespace, "get", kinds, "-l", f"{OWNER}={pipeline}", "-o", "json"))
    return [f"{each['kind']} {name(each)}" for each in found["items"]]


def tenths(since: float) -> str:
    """Format the seconds since a time."""
    return f"{time.monotonic() - since:.1f} s"
