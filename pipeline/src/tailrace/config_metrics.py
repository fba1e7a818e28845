"""The section `metrics`: how a pipeline lets itself be watched."""

from __future__ import annotations

from pydantic import Field

from tailrace.section import Seconds, Section


class Metrics(Section):
    """How a pipeline lets itself be watched: the HTTP ports of the driver and of the executors' writers."""

    enabled: bool = Field(default=True, description="Serve metrics, health and the status page.")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address at which driver and writers serve; 0.0.0.0: at all addresses. Nothing there asks who "
        "is asking, and nothing can be changed there.",
    )
    port: int = Field(
        default=9760,
        ge=0,
        le=65535,
        description="The driver's port; 0: any free one. Where it is taken, the next free one, which the driver says.",
    )
    writers: int = Field(
        default=9770, ge=0, le=65535, description="The port of each executor's writer; chosen as the driver's is."
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
