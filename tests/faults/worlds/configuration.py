"""The configuration of a world's pipeline."""

from __future__ import annotations

from typing import Any

from faults.worlds.world import Encoding, Place, Work, World

_SPARK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.master": "local[2,4]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
}


def configuration(world: World, bootstrap: str, name: str, source: str, sink: str, registry: str) -> dict[str, Any]:
    """Return it as a file has it; functions and schemas are next to the file."""
    whole = world.work is Work.NONE
    data: dict[str, Any] = {
        "pipeline": name,
        "kafka": {"bootstrap.servers": bootstrap},
        "source": {"topics": [source], **_format(world, "in.avsc", registry)},
        "sink": {"topic": sink, **_format(world, "in.avsc" if whole else "out.avsc", registry)},
        "batch": {"max_records": world.max_records, "target": 0},
        "metrics": {"enabled": False},
        "spark": _SPARK,
    }
    if world.encoding is Encoding.JSON:
        data["source"]["schema"] = "p long not null, n long not null" + (", pad string" if whole else "")
    if not whole:
        frames = world.work is Work.SHUFFLE or (world.place is Place.SPARK and world.seed % 2)
        kind, function = ("function", "frame") if frames else ("arrow", "arrow")
        arguments = {"work": world.work.value, "encoding": world.encoding.value}
        data["process"] = {kind: f"work.py:{function}", "arguments": arguments}
    for section, number in (("sink", world.sink_partitions), ("source", world.source_partitions)):
        if number is not None:
            data[section]["partitions"] = number
    return data


def _format(world: World, schema: str, registry: str) -> dict[str, Any]:
    if world.encoding in (Encoding.RAW, Encoding.JSON):
        return {"format": world.encoding.value}
    return {"format": "avro", "schema": schema} | ({"registry": {"url": registry}} if registry else {})
