"""What a change of a Pipeline's spec does to its driver: nothing, or a hand-over. Pure, and complete by a test.

Each key of a spec has one effect. A test reports a key without one, and compares the effects with the driver's pod
template as the chart renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

Spec = Mapping[str, Any]


class Effect(StrEnum):
    """What a changed key asks for."""

    OPERATOR = "operator"  # only the operator reads it: no object of a revision has it
    LIVE = "live"  # other objects change, or the driver reads it while it runs
    HAND_OVER = "hand-over"  # the driver's pod or its configuration changes


NESTED = ("config", "driver", "executors")  # keys whose own keys are told apart

_OPERATOR = ("suspend", "paused", "waitFor", "deletionPolicy", "shadow")
_LIVE = (
    "topics",  # rights of the KafkaUser
    "executors.instances",  # the driver reads a file that Kubernetes rewrites
    "disruption",  # PodDisruptionBudgets
    "serviceAccount",  # annotations of accounts: identities of pods that start later
    "revisions",  # how many earlier configurations are kept
    "progressDeadlineSeconds",  # of the Deployment, not of its pods
)
_HAND_OVER = (
    "upgrade", "image", "files", "secretEnv", "env",
    "config.source", "config.process", "config.sink", "config.batch", "config.rejected", "config.kafka",
    "config.ledger", "config.offsets", "config.checkpoint", "config.executors", "config.metrics", "config.spark",
    "driver.memory", "driver.resources", "driver.scratch", "driver.editable", "driver.pod",
    "driver.standbys",  # between none and some: standbys prefer other nodes
    "executors.cores", "executors.memory", "executors.memoryOverhead", "executors.cpu", "executors.scratch",
    "executors.pod",
    "graceSeconds", "successorSeconds", "nodeLossSeconds", "restartOnRenewal",
    "podLabels", "podAnnotations", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
    "priorityClassName",
)  # fmt: skip
EFFECTS: Mapping[str, Effect] = {
    **dict.fromkeys(_OPERATOR, Effect.OPERATOR),
    **dict.fromkeys(_LIVE, Effect.LIVE),
    **dict.fromkeys(_HAND_OVER, Effect.HAND_OVER),
}


def why(old: Spec, new: Spec) -> tuple[str, ...]:
    """Return the keys whose change needs another driver."""
    return changed(old, new, Effect.HAND_OVER)


def changed(old: Spec, new: Spec, effect: Effect) -> tuple[str, ...]:
    """Return the keys of one effect that differ, in order; a key that no table knows needs another driver."""
    before, after = _flat(old), _flat(new)
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return tuple(name for name in names if EFFECTS.get(name, Effect.HAND_OVER) is effect)


def part(spec: Spec, effect: Effect) -> dict[str, Any]:
    """Return what a spec says with keys of one effect."""
    return _nested({name: value for name, value in _flat(spec).items() if _effect(name) is effect})


def combined(revision: Spec, spec: Spec, topics: Spec | None = None) -> dict[str, Any]:
    """Return a revision as it is to run: what is live follows the spec, even after a rollback.

    A revision that runs again needs the rights of its own `topics` as well.
    """
    fixed = {name: value for name, value in _flat(revision).items() if _effect(name) is Effect.HAND_OVER}
    live = {name: value for name, value in _flat(spec).items() if _effect(name) is Effect.LIVE}
    if topics:
        live["topics"] = _both(live.get("topics") or {}, topics)
    return _nested({**fixed, **live})


def _both(asked: Spec, before: Spec) -> dict[str, Any]:
    """Return the rights of both, whose keys are lists."""
    return {key: list(dict.fromkeys([*asked.get(key, ()), *before.get(key, ())])) for key in {**asked, **before}}


def _effect(name: str) -> Effect:
    return EFFECTS.get(name, Effect.HAND_OVER)


def _flat(spec: Spec) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in spec.items():
        if name in NESTED and isinstance(value, Mapping):
            made |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            made[name] = value
    return made


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(".")
        if inner and outer in NESTED:
            made.setdefault(outer, {})[inner] = value
        else:
            made[name] = value
    return made
