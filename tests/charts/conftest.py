"""Fixtures of the chart's tests: each environment, rendered once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import schemas
from support.helm import ENVIRONMENTS, SHARED, Resource, render

_rendered: dict[str, list[Resource]] = {}


# A folder for each version of Strimzi whose definitions are at hand.
DEFINITIONS: list[Path | None] = [each for each in sorted((SHARED / "strimzi").glob("crds*")) if each.is_dir()]


@pytest.fixture(scope="session", params=DEFINITIONS or [None], ids=lambda each: each.name if each else "none")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the schemas once for each version of Strimzi."""
    folder = tmp_path_factory.mktemp("schemas")
    schemas.write(folder, request.param)
    return folder


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest) -> str:
    """Parametrize over the environments."""
    return str(request.param)


@pytest.fixture
def resources(environment: str) -> list[Resource]:
    """Return the environment's rendered resources."""
    if environment not in _rendered:
        _rendered[environment] = render(environment)
    return _rendered[environment]


@pytest.fixture(scope="session")
def everything() -> list[Resource]:
    """Render the chart with every option on that adds an object or a variable."""
    return render("dev", EVERYTHING)


EVERYTHING = {
    "commonLabels": {"team": "streams"},
    "images": {"pullSecrets": ["registry"]},
    "objectStorage": {"mode": "embedded", "embedded": {"image": {"repository": "localhost/minio", "tag": "test"}}},
    "monitoring": {"enabled": True, "labels": {"prometheus": "main"}},
    "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 8081}]}]},
    "kafka": {"existingTopics": ["words", "counts", "more", "late"]},
    "pipelines": [
        {
            "name": "tweets",
            "config": {
                "source": {"topics": ["tweets"]},
                "sink": {"topic": "hashtags", "format": "raw"},
                "offsets": {"from": "tailrace.before"},
                "batch": {"drain": 30.5},
                "process": {"function": "upper.py:upper"},
                "spark": {"spark.sql.shuffle.partitions": 4},
                "metrics": {"samples": 3},
            },
            "files": {"upper.py": "def upper(rows):\n    return rows\n"},
            "secretEnv": {"REGISTRY_KEY": {"secret": "registry-key", "key": "key"}},
            "env": {"LIMIT": 5},
            "driver": {"editable": "/opt/pipeline"},
            "podLabels": {"cost": "a"},
            "podAnnotations": {"note": "b"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": {"driver": "high", "executor": "low"},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "serviceAccount": {"annotations": {"role": "arn"}},
        },
        {
            "name": "counts",
            "upgrade": "drain",
            "config": {
                "source": {"topics": ["words"]},
                "sink": {"topic": "counts"},
                "checkpoint": "s3a://tailrace/counts",
                "rejected": "bad.words",
            },
            "topics": {"read": ["more"], "readPrefixes": ["logs."], "write": ["late"]},
        },
    ],
}
