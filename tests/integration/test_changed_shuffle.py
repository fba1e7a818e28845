"""A function whose shuffle is changed while a batch is open: the code that delivers a part decides the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.pipelines import Bench, numbered
from tailrace import errors

pytestmark = pytest.mark.integration

# Fails in the sink partitions that the file `broken` names, late enough for the others to commit.
FUNCTION = """
    import time
    from pathlib import Path
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    def by(frame, divisor):
        def check(value, partition):
            broken = Path({folder!r}, "broken")
            if broken.exists() and str(partition) in broken.read_text():
                time.sleep(3)
                raise ValueError("the fault of the test")
            return value
        rows = frame.repartition(2, F.hash("value") % divisor)
        return rows.select(F.udf(check, BinaryType())("value", F.spark_partition_id()).alias("value"))
"""


@pytest.mark.takes(30)
@pytest.mark.parametrize("checkpoint", ["ledger", "state"])
def test_first_function_is_refused_once_the_second_has_delivered_a_part(
    bench: Callable[..., Bench], checkpoint: str
) -> None:
    """The first had delivered nothing. A rollback to it would move rows from a part to come to one that is there."""
    one = bench(partitions=2)
    one.write("shuffles.py", FUNCTION.format(folder=str(one.folder)))
    one.send(numbered(0, 40))

    def run(divisor: int, broken: str = "") -> None:
        (one.folder / "broken").write_text(broken)
        sections: dict[str, Any] = {
            "source": {"format": "raw", "partitions": None},  # reading tasks reject, and so deliver, nothing
            "process": {"function": "shuffles.py:by", "arguments": {"divisor": divisor}},
            "sink": {"format": "raw"},
            "checkpoint": checkpoint if checkpoint == "ledger" else str(one.folder / checkpoint),
        }
        one.run(**sections)

    with pytest.raises(errors.FunctionFailed):
        run(5, broken="01")
    one.settle()
    assert one.values() == []
    with pytest.raises(errors.FunctionFailed):
        run(7, broken="1")
    one.settle()
    before = one.values()
    assert 0 < len(before) < 40
    with pytest.raises(errors.CutChanged, match="function"):
        run(5)
    assert one.values() == before
    run(7)
    assert one.values() == numbered(0, 40)
