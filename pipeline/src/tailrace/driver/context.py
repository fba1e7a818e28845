"""What a run holds: made once when a driver starts, and handed to whatever plans the batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.driver.follower import Follower
from tailrace.driver.offset_mirror import Keeper
from tailrace.driver.scaler import Scaler
from tailrace.driver.shutdown import Stop
from tailrace.driver.spark_engine import SparkEngine
from tailrace.kafka.cluster import Cluster
from tailrace.progress.lease import Lease
from tailrace.progress.ledger import Ledger
from tailrace.stages.assembly import Assembly

Event = dict[str, Any]
Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Drive:
    """Everything that a run holds."""

    spark: SparkSession
    pipeline: Pipeline
    assembly: Assembly
    engine: SparkEngine | None  # of a stateless pipeline
    cluster: Cluster
    ledger: Ledger
    lease: Lease
    keeper: Keeper
    emit: Emit
    stop: Stop
    run: str
    follower: Follower
    scaler: Scaler
