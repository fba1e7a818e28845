"""What differs between batches, as a local property of the job: written by the driver, read by its tasks."""

from __future__ import annotations

import base64
import functools
import pickle
import zlib
from typing import TypeVar

from pyspark import TaskContext

from tailrace.errors import InvariantBroken

T = TypeVar("T")


def text_of(info: object) -> str:
    """Encode an object as the property's text."""
    return base64.b64encode(zlib.compress(pickle.dumps(info), 1)).decode()


@functools.lru_cache(maxsize=4)
def _read(text: str) -> object:
    found: object = pickle.loads(zlib.decompress(base64.b64decode(text)))
    return found


def of_task(name: str, kind: type[T]) -> tuple[T, TaskContext]:
    """Return what the property of this task's job holds, and the task."""
    context = TaskContext.get()
    if context is None:
        raise InvariantBroken("a stage of the pipeline runs outside a Spark task")
    text = context.getLocalProperty(name)
    if not text:
        raise InvariantBroken("the job does not say which batch it delivers")
    found = _read(text)
    if not isinstance(found, kind):
        raise InvariantBroken(f"the property {name} holds {type(found).__name__}")
    return found, context
