"""The operator's charts: what they render, which rights they grant, and that the pages tell all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lupa
import pytest
import yaml

from support.helm import CHART, ROOT, Resource, helm, named, of_kind, unfit
from tailrace_operator import gates
from tailrace_operator.crd import crd, operation
from tailrace_operator.model import Closed
from tailrace_operator.platform import KINDS
from tailrace_operator.status import Phase

CHARTS = ROOT / "charts"
PAGE = (ROOT / "docs" / "operator.md").read_text(encoding="utf-8")
SOURCES = ROOT / "operators" / "src" / "tailrace_operator"


def rendered(*arguments: str, **values: Any) -> list[Resource]:
    """Return what the operator's chart renders to."""
    done = helm("template", "op", str(CHARTS / "tailrace-operator"), "-n", "ops", *arguments, values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def rights(role: Resource) -> set[tuple[str, str, str]]:
    """Return what a role grants: group, resource, verb."""
    return {
        (group, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    }


def test_definition_in_the_chart_is_that_of_the_code() -> None:
    """`make charts-schema` writes it."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    written = (CHARTS / "tailrace-crds" / "templates" / "pipelines.yaml").read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(written)) == [crd(schema), operation()]
    assert "{{" not in written


def test_definition_outlives_its_release() -> None:
    """An uninstall would delete every Pipeline with it."""
    done = helm("template", "crds", str(CHARTS / "tailrace-crds"))
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert len(made) == 2
    for each in made:
        notes = each["metadata"]["annotations"]
        assert notes["helm.sh/resource-policy"] == "keep"
        assert notes["argocd.argoproj.io/sync-options"] == "Prune=false"
        assert notes["kustomize.toolkit.fluxcd.io/prune"] == "disabled"


def test_rights_are_in_the_named_namespaces_only() -> None:
    """Without any, they are in all."""
    some = rendered(namespaces=["a", "b"])
    assert {each["metadata"]["namespace"] for each in of_kind(some, "Role", "RoleBinding")} == {"a", "b"}
    assert not of_kind(some, "ClusterRole", "ClusterRoleBinding")
    every = rendered()
    assert of_kind(every, "ClusterRole")
    assert not of_kind(every, "Role")


def test_gates_look_into_further_namespaces_with_few_rights() -> None:
    """They get objects by name, and change nothing; Secrets only if that is allowed."""
    some = rendered(namespaces=["a"], gates={"namespaces": ["a", "kafka"]})
    [role] = [each for each in of_kind(some, "Role") if each["metadata"]["namespace"] == "kafka"]
    assert {verb for _, _, verb in rights(role)} == {"get"}
    assert {name for _, name, _ in rights(role)} == {"configmaps", "secrets", "kafkausers", "kafkatopics"}
    none = rendered(namespaces=["a"], gates={"secrets": False, "namespaces": ["kafka"]})
    assert not {name for each in of_kind(none, "Role") for _, name, _ in rights(each)} & {"secrets"}


def test_each_right_is_in_the_page_with_its_reason() -> None:
    """And no other is granted."""
    section = PAGE.split("\n## Rights\n", 1)[1].split("\n## ", 1)[0]
    told = set()
    for line in section.splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("group", "---"):
            group = "" if cells[0] == "core" else cells[0].strip("`")
            assert cells[3]
            told |= {
                (group, name, verb) for name in re.findall(r"`([^`]+)`", cells[1]) for verb in cells[2].split(", ")
            }
    [role] = of_kind(rendered(), "ClusterRole")
    assert rights(role) == told


def test_operator_has_every_right_that_it_grants() -> None:
    """The API server refuses a Role with rights that its author does not have."""
    done = helm(
        "template", "p", str(CHART), "-n", "s",
        values={
            "kafka": {"mode": "external", "external": {"bootstrapServers": "b:9092"}, "existingTopics": ["a", "b"]},
            "pipelines": [{"name": "p", "config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}}}],
        },
    )  # fmt: skip
    [drivers] = of_kind([each for each in yaml.safe_load_all(done.stdout) if each], "Role")
    [operators] = of_kind(rendered(), "ClusterRole")
    assert rights(drivers) <= rights(operators)


def test_operator_may_write_every_kind_that_it_applies() -> None:
    """Of each kind that it takes from the chart."""
    [role] = of_kind(rendered(), "ClusterRole")
    written = {
        name for rule in role["rules"] if {"create", "patch"} <= set(rule["verbs"]) for name in rule["resources"]
    }
    plural = {each: f"{each.lower()}s" for each in KINDS} | {"NetworkPolicy": "networkpolicies"}
    assert {plural[each] for each in KINDS} <= written


def test_drivers_let_the_operator_ask_them() -> None:
    """Its peer is in what all Pipelines share, beside the peers that are given."""
    peer = {"podSelector": {"matchLabels": {"app": "proxy"}}}
    made = rendered(platform={"http": {"port": 9999, "from": [peer]}, "kafka": {"mode": "external"}})
    platform = yaml.safe_load(named(made, "ConfigMap", "op")["data"]["platform.yaml"])
    assert platform["kafka"] == {"mode": "external"}
    assert platform["http"]["port"] == 9999
    own = named(made, "Deployment", "op")["spec"]["template"]["metadata"]["labels"]
    assert platform["http"]["from"][0] == peer
    assert platform["http"]["from"][1]["podSelector"]["matchLabels"].items() <= own.items()


def test_policy_of_a_driver_lets_its_askers_in() -> None:
    """With and without Prometheus."""
    peer = {"podSelector": {"matchLabels": {"app": "proxy"}}}
    values: dict[str, Any] = {
        "kafka": {"mode": "external", "external": {"bootstrapServers": "b:9092"}, "existingTopics": ["a", "b"]},
        "pipelines": [{"name": "p", "config": {"source": {"topics": ["a"]}, "sink": {"topic": "b"}}}],
        "http": {"from": [peer]},
    }
    for monitoring in (False, True):
        done = helm("template", "t", str(CHART), values=values | {"monitoring": {"enabled": monitoring}})
        made = [each for each in yaml.safe_load_all(done.stdout) if each]
        ingress = named(made, "NetworkPolicy", "t-p-driver")["spec"]["ingress"]
        [asking] = [each for each in ingress if each["ports"] == [{"protocol": "TCP", "port": 9760}]]
        assert asking["from"][0] == peer
        assert len(asking["from"]) == 1 + monitoring


def test_platform_may_not_name_pipelines() -> None:
    """Each Pipeline brings its own."""
    done = helm("template", "op", str(CHARTS / "tailrace-operator"), values={"platform": {"pipelines": []}})
    assert done.returncode


def test_operators_pod_is_restricted() -> None:
    """As the Pod Security Standard has it, with a root file system that cannot be written."""
    pod = named(rendered(), "Deployment", "op")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    free = named(rendered(podSecurity={"fixedIds": False}), "Deployment", "op")["spec"]["template"]["spec"]
    assert "runAsUser" not in free["securityContext"]


def test_changed_platform_restarts_the_operator() -> None:
    """It reads it when it starts."""

    def checksum(**values: Any) -> str:
        made = named(rendered(**values), "Deployment", "op")
        return str(made["spec"]["template"]["metadata"]["annotations"]["checksum/platform"])

    assert checksum() != checksum(platform={"kafka": {"mode": "external"}})


def test_each_object_fits_the_schemas(folder: Path) -> None:
    """An unknown field is an error."""
    assert (
        unfit(rendered(namespaces=["a"], priorityClassName="high", tolerations=[{"operator": "Exists"}]), folder) == ""
    )
    assert unfit(rendered(), folder) == ""


def test_each_phase_is_in_the_page_and_known_to_argo() -> None:
    """A word that nobody explains says nothing at night."""
    table = PAGE.split("\n## The status\n", 1)[1].split("| phase | meaning |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"^\| (\w+) \|", table, re.MULTILINE)) == {each.value for each in Phase}
    health = (ROOT / "docs" / "argo-health.lua").read_text(encoding="utf-8")
    assert set(re.findall(r"(\w+) = \"(?:Healthy|Progressing|Suspended|Degraded)\"", health)) - {"status"} == {
        each.value for each in Phase
    }


def test_each_phase_is_in_the_diagram() -> None:
    """With a way into it."""
    diagram = PAGE.split("```mermaid\nstateDiagram-v2\n", 1)[1].split("```", 1)[0]
    assert set(re.findall(r"--> (\w+):", diagram)) == {each.value for each in Phase}


def test_each_reason_is_in_the_page() -> None:
    """With its condition; those that Kubernetes gives are named as its."""
    source = "".join(
        (SOURCES / name).read_text(encoding="utf-8") for name in ("status.py", "shadow.py", "decide.py", "model.py")
    )
    conditions = set(re.findall(r'Condition\("(\w+)", (?:True|False), "(\w+)"', source))
    holds = re.findall(r'^    [A-Z_]+ = "(Paused|Invalid|NameTaken)"', source, re.MULTILINE)
    conditions |= {("Progressing", each) for each in holds} | {("Accepted", each) for each in holds if each != "Paused"}
    conditions |= {("RolledBack", each) for each in re.findall(r'_words\("(\w+)"', source)} | {
        ("RolledBack", "Requested")
    }
    conditions |= {("Ready", "DriverEnded")}
    waiting = {Closed(kind, "", "").reason for kind in gates.KINDS}
    conditions |= {(each, why) for each in ("Ready", "Progressing", "DependenciesReady") for why in waiting}
    table = PAGE.split("| condition | reason | meaning |", 1)[1].split("\n\n", 1)[0]
    told = {tuple(row) for row in re.findall(r"^\| (\w+) \| (\w+) \|", table, re.MULTILINE)}
    assert told == conditions


@pytest.mark.parametrize(
    ("status", "word", "message"),
    [
        (None, "Progressing", "not seen"),
        ({"phase": "Running", "observedGeneration": 2}, "Healthy", "Running"),
        ({"phase": "Running", "observedGeneration": 1}, "Progressing", "not seen"),
        ({"phase": "Suspended", "observedGeneration": 2}, "Suspended", "Suspended"),
        (
            {
                "phase": "RolledBack",
                "observedGeneration": 2,
                "conditions": [
                    {"type": "Accepted", "status": "True", "reason": "Valid"},
                    {"type": "RolledBack", "status": "True", "reason": "Requested", "message": "slow"},
                ],
            },
            "Degraded",
            "Requested: slow",
        ),
        (
            {
                "phase": "Waiting",
                "observedGeneration": 2,
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "Leading"},
                    {
                        "type": "DependenciesReady",
                        "status": "False",
                        "reason": "WaitingForSecret",
                        "message": "Secret db does not exist",
                    },
                ],
            },
            "Progressing",
            "WaitingForSecret: Secret db does not exist",
        ),
    ],
)
def test_argo_agrees_with_the_status(status: dict[str, Any] | None, word: str, message: str) -> None:
    """Its script runs as it is."""
    script = (ROOT / "docs" / "argo-health.lua").read_text(encoding="utf-8")
    given = {"metadata": {"generation": 2}, **({"status": status} if status else {})}
    found = lupa.LuaRuntime().execute(f"obj = {_lua(given)}\n{script}")
    assert found["status"] == word
    assert message in found["message"]


def _lua(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_lua(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_lua, value)) + "}"
    return json.dumps(value)
