"""A shadow's spec: that of its Pipeline, with what `spec.shadow` changes. Pure.

The same overlay makes two specs. The shadow's has its own sink topic and no right to write anything of the live
pipeline's. The promoted one is what a person gets who moves the overlay into the spec: the revision has the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace_operator.model import Key

Spec = Mapping[str, Any]

SUFFIX = "-shadow"
OVERLAID = ("config", "image", "files", "secretEnv", "env", "driver", "executors")
# Keys of the configuration that say which records are compared, or what the pipeline writes and remembers.
FIXED = (
    "sink.topic", "sink.topics", "source.topics", "source.pattern", "rejected", "offsets", "ledger", "checkpoint",
)  # fmt: skip
_ITS_OWN = ("shadow", "suspend", "paused", "deletionPolicy", "topics")


def shadow_of(key: Key) -> Key:
    """Return the place of a Pipeline's shadow."""
    return Key(key.namespace, f"{key.name}{SUFFIX}")


def merged(below: Any, above: Any) -> Any:
    """Return a value with another one's keys in place of its own, at any depth; null removes a key."""
    if not isinstance(above, Mapping):
        return above
    made = dict(below) if isinstance(below, Mapping) else {}
    for key, value in above.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


def overlaid(spec: Spec) -> dict[str, Any]:
    """Return a spec as it is once its overlay is moved into it, without `shadow`."""
    above = {key: value for key, value in (spec.get("shadow") or {}).items() if key in OVERLAID}
    below = {key: value for key, value in spec.items() if key != "shadow"}
    made: dict[str, Any] = merged(below, above)
    return made


def misplaced(overlay: Spec) -> list[str]:
    """Return the keys of an overlay that a shadow may not change."""
    config = overlay.get("config") or {}
    found = []
    for name in FIXED:
        outer, _, inner = name.partition(".")
        place = config.get(outer) if inner else config
        if isinstance(place, Mapping) and (inner or outer) in place:
            found.append(f"config.{name}")
    return found


def topic_of(spec: Spec, live: str) -> str:
    """Return the shadow's sink topic; `live` is the live pipeline's."""
    return str((spec.get("shadow") or {}).get("topic") or f"{live}{SUFFIX}")


def spec_of(spec: Spec, live: str, *, suspend: bool) -> dict[str, Any]:
    """Return the shadow's own spec; `live` is the live pipeline's sink topic."""
    topic, made = topic_of(spec, live), {k: v for k, v in overlaid(spec).items() if k not in _ITS_OWN}
    config = {key: value for key, value in made["config"].items() if key not in ("rejected", "offsets")}
    config["sink"] = {**(config.get("sink") or {}), "topic": topic}
    driver = {key: value for key, value in (made.get("driver") or {}).items() if key != "standbys"}
    # It reads both outputs to compare them, and writes nothing but its own.
    rights = {key: value for key, value in (spec.get("topics") or {}).items() if key in ("read", "readPrefixes")}
    rights["read"] = list(dict.fromkeys([*(rights.get("read") or ()), live, topic]))
    overlay = spec.get("shadow") or {}
    return {
        **made,
        "config": config,
        **({"driver": driver} if driver else {}),
        "topics": rights,
        "suspend": suspend,
        # One that the spec names may have been there before, with records of somebody else.
        "deletionPolicy": overlay.get("deletionPolicy", "Retain" if overlay.get("topic") else "Delete"),
    }
