"""The manifests of a Kafka resource and its node pools: Services, the brokers' configuration, a StatefulSet per pool.

Pure functions from resources to manifests. The brokers are real, in KRaft mode, with mutual TLS and access control
lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.version import SEMANTIC

Resource = dict[str, Any]
CLIENTS, REPLICATION, CONTROLLERS = 9093, 9091, 9090
ADMIN, BROKER = "admin", "broker"
DATA = "/var/lib/kafka"
CERTIFICATES = "/etc/kafka-certificates"
IMAGE = f"tailrace-e2e-broker:{SEMANTIC}"


@dataclass(frozen=True)
class Pool:
    """A node pool with the id of its first node; ids are unique in a cluster."""

    resource: Resource
    first: int

    @property
    def name(self) -> str:
        """The resource's name."""
        return str(self.resource["metadata"]["name"])

    @property
    def count(self) -> int:
        """The number of nodes."""
        return int(self.resource["spec"]["replicas"])

    @property
    def ids(self) -> list[int]:
        """The ids of its nodes."""
        return list(range(self.first, self.first + self.count))

    def has(self, role: str) -> bool:
        """Tell whether its nodes have this role: broker or controller."""
        return role in self.resource["spec"]["roles"]


def numbered(pools: Sequence[Resource]) -> list[Pool]:
    """Number the pools in the order of their names; each has room for a hundred nodes, so that none is renumbered."""
    ordered = sorted(pools, key=lambda pool: str(pool["metadata"]["name"]))
    return [Pool(pool, 100 * number) for number, pool in enumerate(ordered)]


def cluster_id(kafka: Resource) -> str:
    """Return the cluster id: 22 characters, always the same for one resource."""
    return "T" + hashlib.sha256(str(kafka["metadata"]["uid"]).encode()).hexdigest()[:21]


def hosts(kafka: Resource) -> list[str]:
    """Return the host names in the brokers' certificate."""
    name, namespace = kafka["metadata"]["name"], kafka["metadata"]["namespace"]
    nodes, bootstrap = f"{name}-kafka-brokers.{namespace}.svc", f"{name}-kafka-bootstrap"
    plain = [bootstrap, f"{bootstrap}.{namespace}", f"{bootstrap}.{namespace}.svc", f"*.{nodes}"]
    return [*plain, f"{bootstrap}.{namespace}.svc.cluster.local", f"*.{nodes}.cluster.local"]


def properties(kafka: Resource, pools: Sequence[Pool], pool: Pool) -> str:
    """Return the configuration of a pool's nodes; @ID@ and @POD@ are replaced on each node."""
    name, namespace = kafka["metadata"]["name"], kafka["metadata"]["namespace"]

    def host(pod: str) -> str:
        return f"{pod}.{name}-kafka-brokers.{namespace}.svc"

    voters = [
        f"{each.first + number}@{host(f'{name}-{each.name}-{number}')}:{CONTROLLERS}"
        for each in pools
        if each.has("controller")
        for number in range(each.count)
    ]
    own = host("@POD@")
    advertised = [f"TLS://{own}:{CLIENTS}", f"REPLICATION://{own}:{REPLICATION}"] if pool.has("broker") else []
    listeners = [f"TLS://:{CLIENTS}", f"REPLICATION://:{REPLICATION}"] if pool.has("broker") else []
    if pool.has("controller"):
        listeners += [f"CONTROLLER://:{CONTROLLERS}"]
    made = {
        "process.roles": ",".join(pool.resource["spec"]["roles"]),
        "node.id": "@ID@",
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": "TLS:SSL,REPLICATION:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "REPLICATION",
        "controller.listener.names": "CONTROLLER",
        **{f"listener.name.{each}.ssl.client.auth": "required" for each in ("tls", "replication", "controller")},
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{CERTIFICATES}/{BROKER}.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{CERTIFICATES}/trusted.crt",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:CN={BROKER};User:CN={ADMIN}",
        "log.dirs": f"{DATA}/data",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),  # the default would take half of the heap
        **{key: str(value).lower() if isinstance(value, bool) else str(value)
           for key, value in kafka["spec"]["kafka"].get("config", {}).items()},
    }  # fmt: skip
    if advertised:
        made["advertised.listeners"] = ",".join(advertised)
    return "".join(f"{key}={value}\n" for key, value in made.items())


def manifests(kafka: Resource, pools: Sequence[Pool]) -> list[Resource]:
    """Return all manifests but the Secrets."""
    name = kafka["metadata"]["name"]
    brokers = {"strimzi.io/cluster": name, "strimzi.io/kind": "Kafka", "strimzi.io/broker-role": "true"}
    nodes = {"strimzi.io/cluster": name, "strimzi.io/kind": "Kafka"}
    found = [
        _service(kafka, f"{name}-kafka-bootstrap", brokers, [CLIENTS]),
        _service(kafka, f"{name}-kafka-brokers", nodes, [CLIENTS, REPLICATION, CONTROLLERS], headless=True),
    ]
    return found + [each for pool in pools for each in _pool(kafka, pools, pool)]


def _pool(kafka: Resource, pools: Sequence[Pool], pool: Pool) -> list[Resource]:
    name, spec = f"{kafka['metadata']['name']}-{pool.name}", pool.resource["spec"]
    template = spec.get("template", {})
    configuration = properties(kafka, pools, pool)
    [volume] = spec["storage"]["volumes"]
    labels = {
        "strimzi.io/cluster": kafka["metadata"]["name"],
        "strimzi.io/kind": "Kafka",
        "strimzi.io/component-type": "kafka",
        "strimzi.io/pool-name": pool.name,
        "strimzi.io/broker-role": str(pool.has("broker")).lower(),
        "strimzi.io/controller-role": str(pool.has("controller")).lower(),
    }
    pod = {key: value for key, value in template.get("pod", {}).items() if key != "securityContext"}
    container = {
        "name": "kafka",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "FIRST", "value": str(pool.first)},
            {"name": "HEAP", "value": "320m"},
            {"name": "CLUSTER_ID", "value": cluster_id(kafka)},
        ],
        "resources": spec.get("resources", {}),
        "securityContext": template.get("kafkaContainer", {}).get("securityContext", {}),
        "readinessProbe": {"tcpSocket": {"port": CLIENTS if pool.has("broker") else CONTROLLERS}, "periodSeconds": 2},
        "volumeMounts": [
            {"name": "data", "mountPath": DATA},
            {"name": "configuration", "mountPath": "/etc/kafka"},
            {"name": "certificates", "mountPath": CERTIFICATES},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes: list[Resource] = [
        {"name": "configuration", "configMap": {"name": name}},
        {"name": "certificates", "secret": {"secretName": f"{kafka['metadata']['name']}-brokers"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    kept = volume["type"] == "persistent-claim"
    if not kept:
        volumes.append({"name": "data", "emptyDir": {}})
    statefulset: Resource = {
        "replicas": pool.count,
        "serviceName": f"{kafka['metadata']['name']}-kafka-brokers",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {
                "labels": labels,
                "annotations": {"configuration": hashlib.sha256(configuration.encode()).hexdigest()[:12]},
            },
            "spec": {
                **pod,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 30,
                "securityContext": {
                    "runAsUser": 10001,
                    **template.get("pod", {}).get("securityContext", {}),
                    "fsGroup": 10001,
                },
                "containers": [container],
                "volumes": volumes,
            },
        },
    }
    if kept:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": volume["size"]}}}
        statefulset["volumeClaimTemplates"] = [{"metadata": {"name": "data"}, "spec": claim}]
        retention = "Delete" if volume.get("deleteClaim") else "Retain"
        statefulset["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": retention, "whenScaled": "Retain"}
    return [
        {**_object(kafka, "v1", "ConfigMap", name), "data": {"server.properties": configuration}},
        {**_object(kafka, "apps/v1", "StatefulSet", name), "spec": statefulset},
    ]


def _service(kafka: Resource, name: str, selector: Resource, ports: Sequence[int], headless: bool = False) -> Resource:
    spec: Resource = {"selector": selector, "ports": [{"name": f"p{port}", "port": port} for port in ports]}
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}  # a quorum forms before any node is ready
    return {**_object(kafka, "v1", "Service", name), "spec": spec}


def _object(kafka: Resource, version: str, kind: str, name: str) -> Resource:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": kafka["metadata"]["namespace"],
            "labels": {"strimzi.io/cluster": kafka["metadata"]["name"]},
            "ownerReferences": [owner(kafka)],
        },
    }


def owner(resource: Resource) -> Resource:
    """Return the owner reference that deletes a dependent object with this resource."""
    metadata = resource["metadata"]
    return {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
