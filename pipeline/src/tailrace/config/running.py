"""The sections of a run: `batch`, `ledger`, `executors` and `metrics`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tailrace.config.section import Bytes, Seconds, Section

LEDGER_TOPIC = "tailrace.ledger"
LEDGER_PARTITIONS = 64


class Batch(Section):
    """How the stream is cut into batches."""

    trigger: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds from the beginning of one batch to that of the next; 0: as soon as the last is done.",
    )
    max_records: int = Field(
        default=200_000,
        ge=1,
        description="At most this many records in one batch, whatever the target.",
    )
    target: Seconds = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a batch may take: seconds, or 500ms, 1s, 2m. How many records that are is learned from "
        "the batches before. 0: `max_records` alone counts.",
    )
    max_bytes: Bytes = Field(
        default=256_000_000,
        ge=1,
        description="A batch takes no more records than make up about so many bytes of keys and values, by the size "
        "of those before: a number, or 500kB, 64MB, 1GiB.",
    )
    drain: float = Field(
        default=120.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that the batch under way may still take after SIGTERM or Ctrl-C; then it is given up, and "
        "the next start finishes it.",
    )


class Ledger(Section):
    """The topic that holds plans and, as its group's offsets, markers."""

    topic: str = Field(
        default=LEDGER_TOPIC, min_length=1, description="The ledger topic; pipelines of a cluster share one."
    )
    partitions: int = Field(
        default=LEDGER_PARTITIONS,
        ge=1,
        description="Its partitions, when Tailrace creates it; at least as many as any pipeline has sink partitions.",
    )
    replication: int = Field(
        default=-1,
        ge=-1,
        description="Its replication factor, when Tailrace creates it; -1 is the broker's default.",
    )
    lease: float = Field(
        default=6.0,
        ge=1,
        le=1800,
        description="Seconds after which a driver that has died without a word counts as gone, and a standby takes "
        "over. The broker allows what is between its group.min.session.timeout.ms (6 s by default) and its "
        "group.max.session.timeout.ms.",
    )


class Executors(Section):
    """How many executors there are, where they are pods: as many as the backlog asks for, between two numbers."""

    min: int = Field(default=1, ge=1, description="Never fewer.")
    max: int | None = Field(
        default=None, ge=1, description="Never more. Left out, the number stays what `spark.executor.instances` says."
    )
    backlog: Seconds = Field(
        default=60.0,
        gt=0,
        description="How long it may take to read what waits. Where it would take longer, there are more executors; "
        "where it takes less than a quarter of that for `settle`, there is one fewer.",
    )
    settle: Seconds = Field(
        default=300.0, gt=0, description="How long it must have been calm before an executor goes: seconds, or 5m."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"executors.max is {self.max}, fewer than executors.min, {self.min}")
        return self


class Metrics(Section):
    """How a pipeline lets itself be watched: the HTTP ports of the driver and of the executors' gateways."""

    enabled: bool = Field(default=True, description="Serve metrics, health and the status page.")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address at which driver and gateways serve; 0.0.0.0: at all addresses. Nothing there asks who "
        "is asking, and nothing can be changed there.",
    )
    port: int = Field(
        default=9760,
        ge=0,
        le=65535,
        description="The driver's port; 0: any free one. Where it is taken, the next free one, which the driver says.",
    )
    gateways: int = Field(
        default=9770, ge=0, le=65535, description="The port of each executor's gateway; chosen as the driver's is."
    )
    statistics: Seconds = Field(
        default=10.0, ge=0, description="How often each producer tells its statistics: seconds, or 5s, 1m; 0: never."
    )
    stalled: Seconds = Field(
        default=300.0,
        gt=0,
        description="A driver with lag that has finished no batch for so long (and batch.trigger) is stalled: /healthz "
        "says 503.",
    )
