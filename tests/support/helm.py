"""Helm and kubeconform for tests, and the chart's rendered resources as plain dictionaries.

Both are taken from the PATH, from a compressed copy in `shared/cluster/bin` next to the checkout (or in the folder
that SHARED_TOOLS names), or built from their Go modules. If none of these works, the tests fail with a message.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tailrace"
SHARED = Path(os.environ.get("SHARED_TOOLS") or ROOT.parent / "shared")
MODULES = {
    "helm": "helm.sh/helm/v4/cmd/helm@v4.3.1",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
}
STRIMZI = "kafka.strimzi.io/v1"
MONITORING = "monitoring.coreos.com/v1"
ENVIRONMENTS = ("dev", "staging", "prod")
BUILD_LIMIT = 900.0
LIMIT = 120.0
_WITHOUT_SCHEMA = {"PodMonitor", "PrometheusRule"}

Resource = dict[str, Any]


@functools.cache
def tool(name: str) -> Path:
    """Return the program's path; keep one that had to be unpacked or built for the next run."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    folder = Path(tempfile.gettempdir()) / f"tailrace-tools-{os.getuid()}"
    kept, packed = folder / name, SHARED / "cluster" / "bin" / f"{name}.zst"
    if kept.is_file():
        return kept
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        made = Path(fresh) / name
        if packed.is_file() and shutil.which("zstd"):
            subprocess.run(["zstd", "-q", "-d", str(packed), "-o", str(made)], check=True, timeout=BUILD_LIMIT)
        elif shutil.which("go"):
            environment = {**os.environ, "GOBIN": fresh, "CGO_ENABLED": "0"}
            subprocess.run(["go", "install", MODULES[name]], check=True, env=environment, timeout=BUILD_LIMIT)
        else:
            raise FileNotFoundError(f"the tests of the chart need {name}: put it on the PATH, or install Go")
        made.chmod(0o755)
        made.replace(kept)
    return kept


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm, with `values` passed in a file if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        more: list[str] = []
        if values is not None:
            file = Path(folder) / "values.json"  # as JSON, in which text is text to every reader
            file.write_text(json.dumps(dict(values)), encoding="utf-8")
            more = ["--values", str(file)]
        environment = {
            **{key: value for key, value in os.environ.items() if key != "KUBECONFIG"},
            "HELM_CACHE_HOME": folder, "HELM_CONFIG_HOME": folder, "HELM_DATA_HOME": folder,
        }  # fmt: skip
        return subprocess.run(
            [tool("helm"), *arguments, *more],
            capture_output=True, text=True, timeout=LIMIT, check=False, env=environment,
        )  # fmt: skip


def template(
    environment: str | None = "dev",
    values: Mapping[str, Any] | None = None,
    apis: Sequence[str] = (STRIMZI, MONITORING),
    name: str = "t",
    chart: Path = CHART,
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` and return the finished process."""
    arguments = ["template", name, str(chart), "--namespace", "streams"]
    if environment:
        arguments += ["--values", str(chart / "environments" / f"{environment}.yaml")]
    for api in apis:
        arguments += ["--api-versions", api]
    return helm(*arguments, values=values)


def render(
    environment: str | None = "dev",
    values: Mapping[str, Any] | None = None,
    apis: Sequence[str] = (STRIMZI, MONITORING),
    name: str = "t",
    chart: Path = CHART,
) -> list[Resource]:
    """Return the resources that an environment renders to, with these values added."""
    done = template(environment, values, apis, name, chart)
    if done.returncode:
        raise AssertionError(done.stderr)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refusal(values: Mapping[str, Any] | None = None, apis: Sequence[str] = (STRIMZI,)) -> str:
    """Return Helm's error for values that it must refuse."""
    done = template("dev", values, apis)
    if not done.returncode:
        raise AssertionError("Helm accepted values that it must refuse")
    return done.stderr


def of_kind(resources: Sequence[Resource], *kinds: str) -> list[Resource]:
    """Return the resources of these kinds."""
    return [each for each in resources if each["kind"] in kinds]


def named(resources: Sequence[Resource], kind: str, name: str) -> Resource:
    """Return the only resource of this kind and name."""
    [found] = [each for each in of_kind(resources, kind) if each["metadata"]["name"] == name]
    return found


def revision(resources: Sequence[Resource], name: str = "t-tweets") -> Resource:
    """Return the ConfigMap that a pipeline's driver mounts; it is the only one that is rendered without a cluster."""
    [volume] = [each for each in driver_volumes(resources, name) if each["name"] == "pipeline"]
    return named(resources, "ConfigMap", volume["configMap"]["name"])


def driver_volumes(resources: Sequence[Resource], name: str) -> list[Resource]:
    """Return the volumes of a pipeline's driver."""
    found: list[Resource] = named(resources, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
    return found


def executor(resources: Sequence[Resource], name: str = "t-tweets") -> Resource:
    """Return the pod template of a pipeline's executors."""
    made = yaml.safe_load(revision(resources, name)["data"]["executor.yaml"])
    if not isinstance(made, dict):
        raise AssertionError("the executors' pod template is not a resource")
    return made


def pods(resources: Sequence[Resource]) -> dict[str, Resource]:
    """Return every pod that the resources create, executors included: labels and spec, by a name for messages."""
    found: dict[str, Resource] = {}
    for each in resources:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            found[name] = each
        elif "template" in each.get("spec", {}) and "spec" in each["spec"]["template"]:
            found[name] = each["spec"]["template"]
        elif each["kind"] == "ConfigMap" and "executor.yaml" in each["data"]:
            found[f"executor of {name}"] = yaml.safe_load(each["data"]["executor.yaml"])
    return found


def unfit(resources: Sequence[Resource], folder: Path) -> str:
    """Return what kubeconform finds about resources, with the schemas in a folder."""
    known = [each for each in resources if each["kind"] not in _WITHOUT_SCHEMA]
    if not list(folder.glob("kafka-*")):
        known = [each for each in known if not each["apiVersion"].startswith("kafka.strimzi.io")]
    done = subprocess.run(
        [tool("kubeconform"), "-strict", "-output", "json", "-schema-location",
         f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"],
        input="---\n".join(json.dumps(each) + "\n" for each in known),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout).get("resources") or []
    return "\n".join(f"{each['kind']} {each['name']}: {each['msg']}" for each in found) or done.stderr
