"""Spark jobs of a batch: what they know about the batch, and how they are run without planning them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from tailrace.driver import batch_property
from tailrace.driver.tasks import PROPERTY, BatchInfo

_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextlib.contextmanager
def job(context: Any, info: BatchInfo, group: str = "", description: str = "") -> Iterator[None]:
    """Pass the batch to the tasks of the jobs inside, through local properties; a group can be cancelled by its name.

    Without a group the jobs stay in the one that they are in.
    """
    if group:
        context.setJobGroup(group, description, interruptOnCancel=True)
    context.setLocalProperty(PROPERTY, batch_property.text_of(info))
    try:
        yield
    finally:
        for name in (PROPERTY, *(_GROUP if group else ())):
            context.setLocalProperty(name, None)


def kept_job(frame: DataFrame) -> Any:
    """Return the RDD behind a frame: an SQL execution would rebuild it for each batch."""
    return frame._jdf.queryExecution().toRdd().toJavaRDD()


def answers(job: Any) -> list[bytes]:
    """Run a kept job whose tasks yield a row of one binary column each.

    Rows are read by index: iterating over a Java list ends with an exception, and Py4J looks for its class in every
    jar.
    """
    rows = job.collect()
    return [bytes(rows.get(number).getBinary(0)) for number in range(rows.size())]
