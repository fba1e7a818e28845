"""The configuration of a world's pipeline."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faults.worlds.encodings import JSONS, hostile
from faults.worlds.world import GUARDED, HIDING, Encoding, Place, Work, World
from support.kafkaproxy import PASSWORD, USER
from support.minio import Proxy as Store
from support.registry import SchemaRegistry

_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
}
_EXECUTORS = {
    "spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m", "spark.locality.wait": "0s",
}  # fmt: skip
_FRAMES = frozenset({Work.SHUFFLE, Work.JOIN, Work.LOOKUP, Work.DISTINCT})


@dataclass(frozen=True)
class Outside:
    """What a pipeline uses besides Kafka; None if it does not."""

    schemas: SchemaRegistry | None = None
    store: Store | None = None


def others(settings: Mapping[str, Any], world: World, chance: random.Random) -> dict[str, Any]:
    """Return the settings that a deploy may bring, often with fewer sink partitions; the rest stays as it is.

    Where records may be repeated, a deploy may end that, or begin it again.
    """
    found: dict[str, Any] = {
        **settings,
        "sink": {"partitions": chance.choice((1, 1, 2, 5, 11))},
        "batch": {"max_records": int(world.max_records * chance.choice((0.4, 1, 3)))},
    }
    if world.knobs.at_least_once:
        found["sink"]["delivery"] = chance.choice(("at-least-once", "exactly-once"))
    return found


def configuration(
    world: World, bootstrap: str, name: str, source: str, sink: str, registry: str, state: str = "state"
) -> dict[str, Any]:
    """Return it as a file has it; functions and schemas are next to the file."""
    whole, knobs = world.work is Work.NONE, world.knobs
    data: dict[str, Any] = {
        "pipeline": name,
        "kafka": {"bootstrap.servers": bootstrap, **_login(world)},
        "source": {**_topics(world, source), **_format(world, "in.avsc", registry)},
        "sink": {"topic": sink, **_format(world, "in.avsc" if whole else "out.avsc", registry)},
        "batch": {"max_records": world.max_records, "target": knobs.target, "trigger": knobs.trigger},
        "metrics": {"enabled": False},
        "spark": _SPARK | (_EXECUTORS if world.place is Place.CLUSTER else {}),
    }
    if world.encoding is Encoding.JSON:
        more = ", pad string" if whole else ", d decimal(10,2), x float" if hostile(world) else ""
        data["source"]["schema"] = f"p long not null, n long not null{more}"
    if world.encoding is Encoding.PYDANTIC:
        data["source"]["schema"] = "work.py:Wide" if hostile(world) else "work.py:In"
    if world.work is Work.DISTINCT:
        data["checkpoint"] = state
    data["source"] |= {
        "on_data_loss": knobs.on_data_loss,
        "isolation": "read_uncommitted" if knobs.uncommitted else "read_committed",
    }
    if world.seed % 4:  # at the default, 20, a sixth of what a world costs; one in four has that
        data["source"]["options"] = {"fetch.max.wait.ms": 300}
    if knobs.late:
        data["source"]["auto.offset.reset"] = "latest"
    data["sink"]["delivery"] = "at-least-once" if knobs.at_least_once else "exactly-once"
    for section, key, value in (("batch", "max_bytes", knobs.max_bytes), ("sink", "idle", knobs.idle)):
        if value is not None:
            data[section][key] = value
    if not whole:
        # Only Spark joins, keeps state and shuffles; for what both can do, the seed decides.
        frames = world.work in _FRAMES or world.process_partitions is not None
        frames = frames or (world.place is not Place.THREADS and world.seed % 2 == 1)
        frames = frames and world.work is not Work.LIMIT  # no frame ends before its input
        kind, function = ("function", "frame") if frames else ("arrow", "arrow")
        arguments: dict[str, Any] = {"work": world.work.value, "encoding": world.encoding.value}
        data["process"] = {kind: f"work.py:{function}", "arguments": arguments}
        if knobs.raises:
            arguments["raises"] = True
            data["process"]["on_error"] = "reject"
    partitions = {
        "source": world.source_partitions,
        "process": None if whole or world.work is Work.LIMIT else world.process_partitions,
        "sink": world.sink_partitions,
    }
    for section, number in partitions.items():
        if number is not None:
            data[section]["partitions"] = number
    return data


def _login(world: World) -> dict[str, Any]:
    if GUARDED.isdisjoint(world.strikes):
        return {}
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {"options": {**plain, "sasl.username": USER, "sasl.password": PASSWORD}}


def _topics(world: World, source: str) -> dict[str, Any]:
    return {"topics": [source]} if HIDING.isdisjoint(world.strikes) else {"pattern": source}


def dropin(world: World, bootstrap: str, name: str, source: str, sink: str, ledger: str) -> dict[str, Any]:
    """Return what a job needs that only writes with Tailrace."""
    return {
        "bootstrap": bootstrap, "name": name, "source": source, "sink": sink, "ledger": ledger,
        "work": world.work.value, "max_records": world.max_records, "spark": _SPARK,
    }  # fmt: skip


def _format(world: World, schema: str, registry: str) -> dict[str, Any]:
    if world.encoding is Encoding.RAW:
        return {"format": "raw"}
    if world.encoding in JSONS:
        return {"format": "json"}
    return {"format": "avro", "schema": schema} | ({"registry": {"url": registry}} if registry else {})
