"""`tailrace handover`: what a driver's pod runs before it ends, so that its pipeline is handed over."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tailrace.errors import ConfigInvalid
from tailrace.startup.api_server import Pods
from tailrace.startup.successor import await_successor


def handover(
    selector: Annotated[str, typer.Option("--selector", help="The labels of the pipeline's drivers: a=b,c=d.")],
    limit: Annotated[float, typer.Option("--limit", min=0, help="Seconds to wait at most.")] = 90.0,
) -> None:
    """Wait until another driver's pod is ready: the chart's preStop hook. Without another pod, do not wait."""
    pods = Pods.around(os.environ)
    if pods is None:
        raise ConfigInvalid(
            "POD_NAME and POD_NAMESPACE are not set",
            kept="nothing was changed",
            then="run this in a driver's pod, as the chart does",
        )
    found = await_successor(pods, selector.strip(","), os.environ["POD_NAME"], limit)
    sys.stdout.write(f"{found}\n")
