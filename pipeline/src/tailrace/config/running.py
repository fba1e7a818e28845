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
        description="Seconds from the start of one batch to the start of the next; 0: as soon as the last is done.",
    )
    max_records: int = Field(
        default=200_000,
        ge=1,
        description="Maximum number of records in a batch, whatever the target.",
    )
    target: Seconds = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="How long a batch should take: seconds, or 500ms, 1s, 2m. The number of records that fit is "
        "learned from previous batches. 0: only `max_records` limits a batch.",
    )
    max_bytes: Bytes = Field(
        default=256_000_000,
        ge=1,
        description="Approximate maximum size of a batch, in bytes of keys and values, estimated from previous "
        "batches: a number, or 500kB, 64MB, 1GiB.",
    )
    drain: float = Field(
        default=120.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that the batch in progress may still take after SIGTERM or Ctrl-C; then it is abandoned, "
        "and the next start finishes it.",
    )


class Ledger(Section):
    """The topic that holds plans and, as its group's offsets, markers."""

    topic: str = Field(
        default=LEDGER_TOPIC, min_length=1, description="The ledger topic; pipelines of a cluster can share it."
    )
    partitions: int = Field(
        default=LEDGER_PARTITIONS,
        ge=1,
        description="Number of partitions, if Tailrace creates it; at least as many as any pipeline has sink "
        "partitions.",
    )
    replication: int = Field(
        default=-1,
        ge=-1,
        description="Replication factor, if Tailrace creates it; -1 is the broker's default.",
    )
    lease: float = Field(
        default=6.0,
        ge=1,
        le=1800,
        description="Seconds without a heartbeat after which a driver counts as dead and a standby takes over. The "
        "broker allows values between its group.min.session.timeout.ms (6 s by default) and its "
        "group.max.session.timeout.ms.",
    )


class Executors(Section):
    """Executors that run as pods: how long to wait for them, and scaling between a minimum and a maximum."""

    min: int = Field(default=1, ge=1, description="Minimum number of executors.")
    max: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of executors; if omitted, the number stays at `spark.executor.instances`.",
    )
    backlog: Seconds = Field(
        default=60.0,
        gt=0,
        description="How long reading the backlog may take: seconds, or 1m. If it would take longer, executors are "
        "added; if it has taken less than a quarter of this for `settle`, one is removed.",
    )
    settle: Seconds = Field(
        default=300.0,
        gt=0,
        description="How long the backlog must stay low before an executor is removed: seconds, or 5m.",
    )
    patience: Seconds = Field(
        default=300.0,
        gt=0,
        description="How long a starting driver waits for its first executor before it gives up: seconds, or 15m. A "
        "cluster autoscaler may have to add a node first.",
    )
    file: str | None = Field(
        default=None,
        min_length=1,
        description="File that holds the number of executors, instead of `spark.executor.instances`. It is read at the "
        "start and every second, so the number changes without a restart; with `max` it is the number from which "
        "scaling continues.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"executors.max is {self.max}, less than executors.min, which is {self.min}")
        return self


class Metrics(Section):
    """Monitoring: the HTTP ports of the driver and of the executors' gateways."""

    enabled: bool = Field(default=True, description="Serve metrics, health and the status page.")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address that the driver and the gateways listen on; 0.0.0.0: all addresses. The endpoints are "
        "read-only and have no authentication.",
    )
    port: int = Field(
        default=9760,
        ge=0,
        le=65535,
        description="The driver's port; 0: any free port. If it is taken, the next free one is used and logged.",
    )
    gateways: int = Field(
        default=9770, ge=0, le=65535, description="The port of each executor's gateway, chosen like the driver's."
    )
    statistics: Seconds = Field(
        default=10.0,
        ge=0,
        description="Interval between each producer's statistics reports: seconds, or 5s, 1m; 0: never.",
    )
    stalled: Seconds = Field(
        default=300.0,
        gt=0,
        description="A driver with lag that has finished no batch for this long (plus batch.trigger) is stalled: "
        "/healthz returns 503.",
    )
    runbooks: str = Field(
        default="",
        description="Where the runbooks are, for the links of the status page: a URL, to which a name such as "
        "`/stalled.md` is added. Empty: the page names no runbook.",
    )
    samples: int = Field(
        default=0,
        ge=0,
        le=50,
        description="Number of delivered and of rejected records that the status page shows, the last ones; 0: none. "
        "Whoever reaches the port can read them. The driver needs the right to read both topics.",
    )
    redact: list[str] = Field(
        default_factory=list,
        description="Names of JSON fields whose values are hidden in the samples, at any depth. With any, keys and "
        "values that are no JSON are hidden as well.",
    )
