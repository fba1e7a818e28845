"""Several executors: each has its gateway, and sink partitions move between them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.drivers import command, written_file
from support.pipelines import Bench, events_of, numbered

_LIMIT = 500  # seconds; beside three other tests, an executor may need a minute to start
pytestmark = [pytest.mark.integration, pytest.mark.timeout(_LIMIT + 60)]

TWO = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "512m", "spark.locality.wait": "0s"}


def run(one: Bench, **sections: Any) -> list[dict[str, Any]]:
    """Read what exists, in a separate driver process, since a process holds one Spark session."""
    file = written_file(one, spark={**one.pipeline().spark, **TWO}, **sections)
    done = subprocess.run(
        command(file, "--batch", "--output", "json"), capture_output=True, text=True, timeout=_LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_two_executors_write_each_record_once(bench: Any) -> None:
    """This holds over many batches and a restart."""
    one: Bench = bench(partitions=4)
    for number in range(4):
        one.send(numbered(number * 1000, number * 1000 + 500), partition=number)
    first = run(one, batch={"max_records": 100})
    for number in range(4):
        one.send(numbered(number * 1000 + 500, number * 1000 + 600), partition=number)
    second = run(one, batch={"max_records": 100})
    assert one.values() == [value for n in range(4) for value in numbered(n * 1000, n * 1000 + 600)]
    written = events_of(first, "written")
    assert len(written) >= 20
    assert sum(each["skipped"] for each in written + events_of(second, "written")) == 0


@pytest.mark.long
def test_killed_executor_loses_and_repeats_nothing(bench: Any, tmp_path: Path) -> None:
    """Its tasks run again on another one, which fences open transactions and reads the markers."""
    one: Bench = bench(partitions=2)
    one.write(
        "killer.py",
        f"""
        import os
        from pathlib import Path
        import psutil
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        KILLED = Path({str(tmp_path / "killed")!r})

        def killer(frame):
            def check(value):
                if bytes(value) == b"000900" and not KILLED.exists():
                    KILLED.touch()
                    next(each for each in psutil.Process().parents() if "java" in each.name()).kill()
                return bytes(value)
            return frame.select(F.udf(check, BinaryType())("value").alias("value"))
        """,
    )
    one.send(numbered(0, 1000), partition=0)
    one.send(numbered(5000, 6000), partition=1)
    run(one, process={"function": "killer.py:killer"}, batch={"max_records": 500})
    assert (tmp_path / "killed").exists()
    assert one.values() == numbered(0, 1000) + numbered(5000, 6000)


SPOTS = (b"000150", b"005250", b"000450")
KILLER = """
    import os
    from pathlib import Path

    import psutil
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    KILLED = Path({killed!r})
    SPOTS = {spots!r}

    def kill(value):
        if value in SPOTS and not (KILLED / value.decode()).exists():
            (KILLED / value.decode()).touch()
            next(each for each in psutil.Process().parents() if "java" in each.name()).kill()
        return value

    def frames(frame):
        return frame.select(F.udf(lambda value: kill(bytes(value)), BinaryType())("value").alias("value"))

    def arrow(batches):
        for each in batches:
            for value in each.column("value").to_pylist():
                kill(value)
            yield each.select(["value"])
"""


@pytest.mark.long
@pytest.mark.parametrize("process", [{"function": "killer.py:frames"}, {"arrow": "killer.py:arrow"}])
def test_executors_killed_in_turn_lose_and_repeat_nothing(bench: Any, tmp_path: Path, process: dict[str, str]) -> None:
    """The first to reach a given record is killed in mid-batch; others fence its transactions and finish the batch."""
    one: Bench = bench(partitions=2)
    killed = tmp_path / "killed"
    killed.mkdir()
    one.write("killer.py", KILLER.format(killed=str(killed), spots=SPOTS))
    one.send(numbered(0, 600), partition=0)
    one.send(numbered(5000, 5600), partition=1)
    run(one, process=process, batch={"max_records": 400})
    assert sorted(each.name.encode() for each in killed.iterdir()) == sorted(SPOTS)
    assert one.values() == numbered(0, 600) + numbered(5000, 5600)
