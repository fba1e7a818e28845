"""A gateway's monitoring settings, passed in the environment of the executor's Python processes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from dataclasses import dataclass
from typing import Final, Self

from tailrace.config import Pipeline

log = logging.getLogger(__name__)

ENV: Final = "TAILRACE_WATCHED"


@dataclass(frozen=True)
class Watched:
    """Where to serve, for which pipeline, and librdkafka's statistics interval (seconds; 0: never)."""

    pipeline: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    statistics: float = 0.0

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        """Return the settings from the pipeline's configuration."""
        chosen = pipeline.metrics
        return cls(pipeline.pipeline, chosen.host, chosen.gateways, chosen.statistics)

    @classmethod
    def here(cls) -> Self | None:
        """Return the settings from this process's environment; None if the gateway is not monitored."""
        text = os.environ.get(ENV, "")
        try:
            return cls(**json.loads(text)) if text else None
        except (ValueError, TypeError) as error:
            log.warning("this gateway serves no metrics: %s is invalid: %r (%s)", ENV, text, error)
            return None

    def __str__(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))
