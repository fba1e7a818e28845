"""The operator's process: kopf watches, and each event says which Pipeline to look at.

Only low-level event handlers are used: they add neither finalizers nor annotations, so that a Pipeline can be deleted
when the operator is gone. `python -m tailrace_operator` runs it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import kopf
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from tailrace.config.resource import GROUP, OPERATION, OPERATIONS, OWNER, PLURAL, VERSION
from tailrace_operator.api import ApiServer
from tailrace_operator.build import Builder, topics_of
from tailrace_operator.cache import Cache
from tailrace_operator.model import SHADOW, Key, Object
from tailrace_operator.platform import Platform
from tailrace_operator.reconcile import Reconciler
from tailrace_operator.status import Phase
from tailrace_operator.work import Work

log = logging.getLogger(__name__)

_WATCH_LIMIT = 300  # seconds until a watch is begun anew: a connection that died silently is noticed then at the latest


class _Backoffs:
    """Seconds between the tries of a watch, without an end: one that is refused must not end the others."""

    def __iter__(self) -> Iterator[int]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13), itertools.repeat(20))


class Metrics:
    """What the operator says about itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = Counter("tailrace_operator_reconciles", "Reconciles.", ["outcome"], registry=registry)
        self.seconds = Histogram("tailrace_operator_reconcile_seconds", "Duration of a reconcile.", registry=registry)
        self.waiting = Gauge("tailrace_operator_waiting", "Pipelines that are due and wait.", registry=registry)
        self.phases = Gauge("tailrace_operator_pipelines", "Pipelines by phase.", ["phase"], registry=registry)
        # Prometheus gives `namespace` to the operator's own.
        labels = ["pipeline_namespace", "pipeline", "phase"]
        self.phase = Gauge("tailrace_operator_pipeline", "1 for the phase of a Pipeline.", labels, registry=registry)
        self.requests = Gauge(
            "tailrace_operator_requests", "Requests to the API server, without watches.", ["verb"], registry=registry
        )


class Operator:
    """Everything that the process holds."""

    def __init__(self, platform: Platform, helm: str, api: ApiServer, threads: int) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.cache = Cache()
        self._api = api
        self._phases: dict[Key, str] = {}
        self._reconciler = Reconciler(self.cache, Builder(platform, helm, api.known, self.cache.bodies), api)
        self.work = Work(self._reconciler.reconcile, self._done, threads, soon=Phase.WAITING)
        self.metrics.waiting.set_function(lambda: self.work.waiting)

    def _done(self, key: Key, outcome: str, seconds: float) -> None:
        self.metrics.reconciles.labels(outcome).inc()
        self.metrics.seconds.observe(seconds)
        if outcome != "error":
            self._tell(key, self._phases.get(key, "gone"), outcome)
        counts = list(self._phases.values())
        self.metrics.phases.clear()
        for each in set(counts):
            self.metrics.phases.labels(each).set(counts.count(each))
        for verb, count in list(self._api.asked.items()):
            self.metrics.requests.labels(verb).set(count)

    def _tell(self, key: Key, before: str, phase: str) -> None:
        """Remember the phase of a Pipeline, or that it is gone."""
        if before == phase:
            return
        if before != "gone":
            self.metrics.phase.remove(key.namespace, key.name, before)
            del self._phases[key]
        if phase != "gone":
            self.metrics.phase.labels(key.namespace, key.name, phase).set(1)
            self._phases[key] = phase
            log.info("%s: %s", key, phase)

    def _due(self, key: Key, labels: Mapping[str, str] | None = None) -> None:
        """Look at a Pipeline soon, and at the one that it is the shadow of."""
        self.work.add(key)
        name = (labels or {}).get(SHADOW)
        live = Key(key.namespace, name) if name else self.cache.live_of(key)
        if live is not None:
            self.work.add(live)

    def heard(self, body: Object, *, gone: bool) -> None:
        """Take a Pipeline, and look at it soon; also at those whose topics it names, which are to outlive them."""
        key = self.cache.pipeline(body, gone=gone)
        self._due(key, body["metadata"].get("labels"))
        named = topics_of(key.name, body.get("spec") or {})
        for each in self.cache.bodies():
            if each != key and f"{each.name}.rejected" in named:
                self.work.add(each)

    def handlers(self) -> kopf.OperatorRegistry:
        """Return the handlers of all watches."""
        registry = kopf.OperatorRegistry()

        @kopf.on.startup(registry=registry)
        def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
            settings.scanning.disabled = True  # it would need to list all namespaces and definitions
            settings.posting.enabled = False
            settings.watching.server_timeout = _WATCH_LIMIT
            settings.watching.client_timeout = _WATCH_LIMIT + 30
            settings.networking.error_backoffs = _Backoffs()

        @kopf.on.login(registry=registry)
        def login(**given: Any) -> kopf.ConnectionInfo | None:
            return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        def pipeline(event: Any, **_: Any) -> None:
            self.heard(dict(event["object"]), gone=event["type"] == "DELETED")

        def watched(kind: str, event: Any) -> None:
            self._due(self.cache.put(kind, dict(event["object"]), gone=event["type"] == "DELETED"))

        @kopf.on.event("apps", "v1", "deployments", labels={OWNER: kopf.PRESENT}, registry=registry)
        def deployment(event: Any, **_: Any) -> None:
            watched("Deployment", event)

        @kopf.on.event("apps", "v1", "controllerrevisions", labels={OWNER: kopf.PRESENT}, registry=registry)
        def record(event: Any, **_: Any) -> None:
            watched("ControllerRevision", event)

        @kopf.on.event("batch", "v1", "jobs", labels={OWNER: kopf.PRESENT}, registry=registry)
        def job(event: Any, **_: Any) -> None:
            watched("Job", event)

        @kopf.on.event(GROUP, VERSION, OPERATIONS, registry=registry)
        def operation(event: Any, **_: Any) -> None:
            watched(OPERATION, event)

        drivers: dict[str, Any] = {"tailrace.dev/component": "driver", "tailrace.dev/pipeline": kopf.PRESENT}

        @kopf.on.event("v1", "pods", labels=drivers, registry=registry)
        def pod(event: Any, **_: Any) -> None:
            watched("Pod", event)

        return registry


def run(operator: Operator, namespaces: list[str], port: int) -> None:
    """Serve /metrics, reconcile, and watch until a signal comes."""
    if port:
        start_http_server(port, registry=operator.registry)
    operator.work.start()
    log.info("watching %s", ", ".join(namespaces) or "all namespaces")
    try:
        kopf.run(
            registry=operator.handlers(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            liveness_endpoint=f"http://0.0.0.0:{port + 1}/healthz" if port else None,
        )
    finally:
        operator.work.stop()
