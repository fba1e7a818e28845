"""Records whose verdict depends on something outside, like a registry or a clock: a batch must keep what it decided."""

from __future__ import annotations

from support.pipelines import Bench
from tailrace.testing import Record, produce

# While the file `strict` exists, odd ids are rejected.
_MODEL = """
    from pathlib import Path
    from pydantic import BaseModel, field_validator

    class Order(BaseModel):
        id: int

        @field_validator("id")
        @classmethod
        def even(cls, number):
            if number % 2 and Path({folder!r}, "strict").exists():
                raise ValueError("odd")
            return number
"""
SCHEMA = "model.py:Order"
STRICT = "strict"


def fill(one: Bench) -> None:
    """Write the model next to the pipeline, turn strictness on, and send ids 0 to 19 to two source partitions."""
    one.write("model.py", _MODEL.format(folder=str(one.folder)))
    records = [Record(b'{"id": %d}' % each, key=b"%d" % each, partition=each // 10) for each in range(20)]
    produce(one.kafka, one.source, records)
    (one.folder / STRICT).touch()
