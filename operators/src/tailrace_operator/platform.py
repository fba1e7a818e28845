"""The platform: what all pipelines of an operator share, as values of the chart without pipelines; and the chart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailrace.errors import ConfigInvalid

# A pipeline's parts have one owner each; the brokers, the bucket, dashboards and alerts are a Helm release's.
KINDS = {
    "ServiceAccount": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "ConfigMap": "v1",
    "Service": "v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "KafkaTopic": "kafka.strimzi.io/v1",
    "KafkaUser": "kafka.strimzi.io/v1",
    "Deployment": "apps/v1",  # last: what its pods need is there by then
}
TOPIC = "KafkaTopic"  # holds records: it outlives its pipeline
OPTIONAL = frozenset({"PodMonitor", "KafkaTopic", "KafkaUser"})  # of other operators, which may not be there
_NOT_OURS = ("pipelines", "fullnameOverride")


@dataclass(frozen=True)
class Platform:
    """The chart, and the values of everything but the pipelines."""

    chart: Path
    values: Mapping[str, Any]

    @property
    def port(self) -> int | None:
        """Where drivers answer; None if they do not."""
        http = self.values.get("http") or {}
        return int(http.get("port", 9760)) if http.get("enabled", True) else None

    @property
    def topics(self) -> list[str]:
        """The topics that the platform names itself."""
        return [str(each) for each in (self.values.get("kafka") or {}).get("existingTopics") or ()]


def load(chart: Path, values: Path) -> Platform:
    """Read the platform's values; raise ConfigInvalid if they are none."""
    if not (chart / "Chart.yaml").is_file():
        raise ConfigInvalid(
            f"{chart} is not a chart", kept="nothing was changed", then="name the folder charts/tailrace"
        )
    try:
        data = yaml.safe_load(values.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        what = f"the platform's values in {values} cannot be read: {type(error).__name__}"
        raise ConfigInvalid(
            what, kept="nothing was changed", then="write them as values of the chart, in YAML"
        ) from error
    wrong = [name for name in _NOT_OURS if isinstance(data, dict) and name in data]
    if not isinstance(data, dict) or wrong:
        what = f"the platform's values in {values} set {', '.join(wrong)}" if wrong else f"{values} holds no values"
        raise ConfigInvalid(what, kept="nothing was changed", then="leave them out: each Pipeline brings its own")
    return Platform(chart, data)
