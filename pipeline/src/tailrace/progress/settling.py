"""Markers behind an open transaction: a driver or gateway that was killed in mid-commit leaves one.

Brokers answer no group offset that a transaction may still change, so the markers cannot be read before it is ended.
A driver ends it by taking the transactional id over. A command that only looks must not: it waits for the brokers, who
abort the transaction after its timeout.
"""

from __future__ import annotations

import logging

from tailrace.config import TRANSACTION_TIMEOUT_MS, Pipeline
from tailrace.errors import BrokerUnreachable
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker
from tailrace.progress.plan import SinkPartition

log = logging.getLogger(__name__)

_GLANCE = 5.0  # seconds; a transaction that is being committed ends within them
_BEYOND = 60.0  # the brokers look for expired transactions every 10 seconds, and a broker may be away


def markers_at_rest(pipeline: Pipeline, ledger: Ledger) -> dict[SinkPartition, Marker]:
    """Return the ledger's markers, as soon as no transaction hides them."""
    try:
        return ledger.markers(_GLANCE)
    except BrokerUnreachable:
        timeout = int(pipeline.sink.options.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)) / 1000
        log.warning(
            "the markers cannot be read yet: a transaction that a killed driver left may be open, and the brokers "
            "abort it after %g s",
            timeout,
        )
        return ledger.markers(timeout + _BEYOND)
