"""Requests about pods to Kubernetes' API server, with the account of this pod.

A driver lists and deletes pods, and needs nothing else of the API; so it carries no client for all of it.
"""

from __future__ import annotations

import datetime
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
# Of a request: no answer, a refusal, an answer that is cut, or one of another form.
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError)
_ANSWER_LIMIT = 10.0


@dataclass(frozen=True)
class Pods:
    """The pods of one namespace."""

    namespace: str
    api: str = API
    account: Path = ACCOUNT

    @classmethod
    def around(cls, environment: Mapping[str, str]) -> Pods | None:
        """Return those of this pod's namespace; None outside a pod that knows its name and namespace."""
        namespace = environment.get("POD_NAMESPACE")
        return cls(namespace) if namespace and environment.get("POD_NAME") else None

    def select(self, selector: str) -> list[dict[str, Any]]:
        """Return the pods with these labels."""
        items: list[dict[str, Any]] = self._ask("GET", selector=selector)["items"]
        return items

    def delete(self, *, selector: str = "", name: str = "", at_once: bool = False) -> None:
        """Delete the pods with these labels, or the one of this name; at once, without asking its node."""
        if not selector and not name:
            raise ValueError("neither labels nor a name say which pods to delete")
        self._ask("DELETE", selector=selector, name=name, more={"gracePeriodSeconds": 0} if at_once else {})

    def _ask(
        self, method: str, *, selector: str = "", name: str = "", more: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        asked = {**({"labelSelector": selector} if selector else {}), **(more or {})}
        url = f"{self.api}/api/v1/namespaces/{self.namespace}/pods"
        url += (f"/{name}" if name else "") + (f"?{urllib.parse.urlencode(asked)}" if asked else "")
        token = (self.account / "token").read_text(encoding="utf-8").strip()
        request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
        authority = self.account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority)) if self.api.startswith("https:") else None
        with urllib.request.urlopen(request, timeout=_ANSWER_LIMIT, context=context) as answer:
            found = json.load(answer)
        if not isinstance(found, dict):
            raise ValueError(f"the API answers with {type(found).__name__}")
        return found


def ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready, and not about to end."""
    conditions = pod.get("status", {}).get("conditions", [])
    return not ending(pod) and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def ending(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def overdue(pod: Mapping[str, Any], now: datetime.datetime, beyond: float) -> bool:
    """Return whether a pod should have ended so many seconds ago: its node does not answer."""
    until = pod["metadata"].get("deletionTimestamp")
    return until is not None and (now - datetime.datetime.fromisoformat(until)).total_seconds() > beyond


def unschedulable(pod: Mapping[str, Any]) -> bool:
    """Return whether the scheduler has found no node for a pod."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each.get("type") == "PodScheduled" and each.get("status") == "False" for each in conditions)


def short(error: Exception) -> str:
    """Describe a failed request in a few words."""
    return f"{error.code} {error.reason}" if isinstance(error, urllib.error.HTTPError) else f"{error}"
