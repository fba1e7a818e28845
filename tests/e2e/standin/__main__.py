"""A stand-in for Strimzi's operators, for clusters that cannot pull their images: `python -m e2e.standin NAMESPACE`.

It accepts the same resources, by the same definitions, and produces the same Secrets, Services and conditions; the
brokers are real. It supports what the chart uses, and nothing else. It is not for real use: it polls everything once a
second, and never upgrades, rolls or renews.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any

from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException

from e2e.standin import brokers
from e2e.standin.brokers import ADMIN, BROKER, CLIENTS, Pool, Resource, owner
from e2e.standin.certificates import Signed, authority, issue

GROUP, VERSION = "kafka.strimzi.io", "v1"
FINALIZER = "strimzi.io/topic-operator"
EVERY = 1.0
EXEC_LIMIT = 90.0
PLURALS = {"Kafka": "kafkas", "KafkaNodePool": "kafkanodepools", "KafkaTopic": "kafkatopics", "KafkaUser": "kafkausers"}


class Standin:
    """The reconciliation loop's state: what it has already applied."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        # Any, because the client's types make every field optional.
        self.custom: Any = client.CustomObjectsApi()
        self.core: Any = client.CoreV1Api()
        self.dynamic: Any = dynamic.DynamicClient(client.ApiClient())
        self._applied: dict[str, str] = {}
        self._round: dict[str, str] = {}

    def look(self) -> None:
        """Reconcile everything once."""
        for kafka in self._all("Kafka"):
            if "deletionTimestamp" in kafka["metadata"]:
                continue
            name = kafka["metadata"]["name"]
            pools = brokers.numbered(_of(self._all("KafkaNodePool"), name))
            trusted, clients = self._authorities(kafka)
            self._apply(kafka, brokers.manifests(kafka, pools))
            ready = self._ready(name, pools)
            self._cluster_status(kafka, pools, trusted, ready)
            users = [each for each in _of(self._all("KafkaUser"), name) if "deletionTimestamp" not in each["metadata"]]
            for user in users:
                self._certificate(user, clients)
            if ready:
                self._administer(kafka, pools, _of(self._all("KafkaTopic"), name), users)

    def _all(self, kind: str) -> list[Resource]:
        found = self.custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURALS[kind])["items"]
        return [{"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, **each} for each in found]

    def _apply(self, kafka: Resource, wanted: Iterable[Resource]) -> None:
        for each in wanted:
            key, text = f"{kafka['metadata']['uid']} {each['kind']} {each['metadata']['name']}", json.dumps(each)
            if self._applied.get(key) == text:
                continue
            resource = self.dynamic.resources.get(api_version=each["apiVersion"], kind=each["kind"])
            self.dynamic.server_side_apply(
                resource, body=each, namespace=self.namespace, field_manager="e2e-standin", force_conflicts=True
            )
            self._applied[key] = text

    def _authorities(self, kafka: Resource) -> tuple[Signed, Signed]:
        """Return the authorities of brokers and users; make them and the brokers' certificates if missing."""
        name = kafka["metadata"]["name"]
        made = [self._authority(kafka, f"{name}-{each}-ca", f"{each}-ca") for each in ("cluster", "clients")]
        if self._secret(f"{name}-brokers") is None:
            signed = issue(made[0], BROKER, 365, brokers.hosts(kafka))
            admin = issue(made[0], ADMIN, 365)
            self._keep(
                kafka,
                f"{name}-brokers",
                {
                    f"{BROKER}.pem": signed.key + signed.certificate,
                    "trusted.crt": made[0].certificate + made[1].certificate,
                    "ca.crt": made[0].certificate,
                    f"{ADMIN}.crt": admin.certificate,
                    f"{ADMIN}.key": admin.key,
                },
            )
        return made[0], made[1]

    def _authority(self, kafka: Resource, name: str, common: str) -> Signed:
        certificate, key = self._secret(f"{name}-cert"), self._secret(name)
        if certificate is None or key is None:
            new = authority(common)
            self._keep(kafka, name, {"ca.key": new.key})
            self._keep(kafka, f"{name}-cert", {"ca.crt": new.certificate})
            return new
        return Signed(certificate["ca.crt"], key["ca.key"])

    def _certificate(self, user: Resource, clients: Signed) -> None:
        name, days = user["metadata"]["name"], user["spec"]["authentication"].get("validityDays", 365)
        if self._secret(name) is None:
            signed = issue(clients, name, days)
            content = {"ca.crt": clients.certificate, "user.crt": signed.certificate, "user.key": signed.key}
            self._keep(user, name, content)

    def _administer(self, kafka: Resource, pools: list[Pool], topics: list[Resource], users: list[Resource]) -> None:
        """Apply topics and users to the brokers, unless nothing has changed since the last time."""
        going = [each for each in topics if "deletionTimestamp" in each["metadata"]]
        staying = [each for each in topics if each not in going]
        wanted = {
            "topics": [
                {
                    "name": _topic(each),
                    "partitions": each["spec"]["partitions"],
                    "replicas": each["spec"].get("replicas", -1),  # as many as the brokers make
                    "config": {key: str(value) for key, value in each["spec"].get("config", {}).items()},
                }
                for each in staying
            ],
            "gone": [_topic(each) for each in going],
            "users": {f"User:CN={each['metadata']['name']}": each["spec"]["authorization"]["acls"] for each in users},
        }
        pool = next(each for each in pools if each.has("broker"))
        pod = f"{kafka['metadata']['name']}-{pool.name}-0"
        uid = self.core.read_namespaced_pod(pod, self.namespace).metadata.uid
        written = [each["metadata"]["uid"] for each in staying + users]
        finalizes = _finalizes(kafka)
        text = json.dumps([uid, written, wanted, finalizes], sort_keys=True)
        if self._round.get(pod) == text:
            return
        command = ["kubectl", "-n", self.namespace, "exec", "-i", pod, "-c", "kafka", "--"]
        done = subprocess.run(
            [*command, "python3", "/opt/broker/admin.py"],
            input=json.dumps(wanted), capture_output=True, text=True, timeout=EXEC_LIMIT, check=False,
        )  # fmt: skip
        if done.returncode:
            say(f"{pod}: {done.stderr.strip()[-300:]}")
            return
        said = json.loads(done.stdout)
        for each in staying:
            name = _topic(each)
            if finalizes != (FINALIZER in each["metadata"].get("finalizers", [])):
                self._patch(each, {"metadata": {"finalizers": [FINALIZER] if finalizes else []}})
            self._status(each, {**_ready(said["topics"][name]), "topicName": name})
        for each in going:
            self._patch(each, {"metadata": {"finalizers": []}})
        for each in users:
            name = each["metadata"]["name"]
            state = _ready(said["users"][f"User:CN={name}"])
            self._status(each, {**state, "username": f"CN={name}", "secret": name})
        if not any([*said["topics"].values(), *said["users"].values()]):
            self._round[pod] = text
        say(f"{len(staying)} topics, {len(users)} users: {said}")

    def _ready(self, cluster: str, pools: list[Pool]) -> bool:
        found = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"strimzi.io/cluster={cluster},strimzi.io/kind=Kafka"
        ).items
        ready = [pod for pod in found if any(each.ready for each in pod.status.container_statuses or [])]
        return bool(pools) and len(ready) == sum(pool.count for pool in pools)

    def _cluster_status(self, kafka: Resource, pools: list[Pool], trusted: Signed, ready: bool) -> None:
        name = kafka["metadata"]["name"]
        address = f"{name}-kafka-bootstrap.{self.namespace}.svc"
        listener = {
            "name": "tls",
            "addresses": [{"host": address, "port": CLIENTS}],
            "bootstrapServers": f"{address}:{CLIENTS}",
            "certificates": [trusted.certificate.decode()],
        }
        why = "" if ready else "its nodes are not ready"
        status = {**_ready(why), "clusterId": brokers.cluster_id(kafka), "listeners": [listener] if ready else []}
        self._status(kafka, status)
        for pool in pools:
            roles = pool.resource["spec"]["roles"]
            self._status(pool.resource, {**_ready(why), "nodeIds": pool.ids, "replicas": pool.count, "roles": roles})

    def _status(self, resource: Resource, status: dict[str, Any]) -> None:
        """Write the status if it has changed."""
        now = resource.get("status", {})
        status["observedGeneration"] = resource["metadata"]["generation"]
        for old, new in zip(now.get("conditions", []), status["conditions"], strict=False):
            if {**old, "lastTransitionTime": ""} == {**new, "lastTransitionTime": ""}:
                new["lastTransitionTime"] = old["lastTransitionTime"]
        if {**now, **status} == now:
            return
        self.custom.patch_namespaced_custom_object_status(
            GROUP, VERSION, self.namespace, PLURALS[resource["kind"]], resource["metadata"]["name"], {"status": status}
        )

    def _patch(self, resource: Resource, patch: dict[str, Any]) -> None:
        self.custom.patch_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURALS[resource["kind"]], resource["metadata"]["name"], patch
        )

    def _secret(self, name: str) -> dict[str, bytes] | None:
        try:
            found = self.core.read_namespaced_secret(name, self.namespace)
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return {key: base64.b64decode(value) for key, value in found.data.items()}

    def _keep(self, of: Resource, name: str, content: dict[str, bytes]) -> None:
        labels = {
            "strimzi.io/cluster": of["metadata"].get("labels", {}).get("strimzi.io/cluster", of["metadata"]["name"])
        }
        body = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner(of)]},
            "data": {key: base64.b64encode(value).decode() for key, value in content.items()},
        }
        self.core.create_namespaced_secret(self.namespace, body)
        say(f"Secret {name}")


def _of(resources: list[Resource], cluster: str) -> list[Resource]:
    return [each for each in resources if each["metadata"].get("labels", {}).get("strimzi.io/cluster") == cluster]


def _topic(resource: Resource) -> str:
    return str(resource["spec"].get("topicName") or resource["metadata"]["name"])


def _finalizes(kafka: Resource) -> bool:
    """Tell whether topics have finalizers, which hold them until Kafka has deleted them; by default they do."""
    template = kafka["spec"].get("entityOperator", {}).get("template", {})
    variables = template.get("topicOperatorContainer", {}).get("env", [])
    return {"name": "STRIMZI_USE_FINALIZERS", "value": "false"} not in variables


def _ready(why: str) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said = {"type": "Ready", "status": "False" if why else "True", "lastTransitionTime": now}
    return {"conditions": [{**said, "reason": "NotReady", "message": why} if why else said]}


def say(text: str) -> None:
    """Log a line to standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(namespace: str) -> None:
    """Reconcile until killed."""
    config.load_kube_config()
    standin = Standin(namespace)
    while True:
        try:
            standin.look()
        except Exception:  # the next round tries again
            say(traceback.format_exc())
        time.sleep(EVERY)


if __name__ == "__main__":
    main(sys.argv[1])
