"""Whether this driver still leads, or a newer one of the same pipeline has taken over.

Its next plan would tell, because the newer driver has fenced it. A batch that never ends has no next plan, for example
one whose executors were lost while this driver was suspended: so a batch that takes long asks the ledger.
"""

from __future__ import annotations

import time

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.progress.ledger import Ledger

_TOLD_BY_TASKS = (errors.CommitInDoubt, errors.MarkerConflict, errors.QueryFailed, errors.ProgressMissing)


def require_lead(ledger: Ledger, pipeline: Pipeline, number: int, run: str, *, is_open: bool = False) -> None:
    """Raise DriverFenced if a newer driver has planned a batch after this one, or, if it is open, has finished it."""
    last = ledger.latest()
    if last is None:
        return
    if last.batch > number and last.run != run:
        raise _fenced(pipeline, number, f" and has reached batch {last.batch}")
    if is_open and last.batch == number and last.done:
        raise _fenced(pipeline, number, " and has finished it")


def refuse_overtaken(ledger: Ledger, pipeline: Pipeline, number: int, *, sure: bool = False) -> None:
    """Raise DriverFenced if a newer driver has taken the ledger, although it may have planned nothing yet.

    Whoever is about to remove what a newer driver may have written must be `sure`: KafkaFailed if no broker tells.
    """
    if ledger.overtaken(sure=sure):
        raise _fenced(pipeline, number)


class Renewal:
    """Keeps the transactional id of a driver that plans nothing: brokers forget one that is not used for 7 days.

    The question whether this driver still leads uses it, in a transaction with an offset that nobody reads. So an idle
    driver also learns that it was replaced.
    """

    def __init__(self, ledger: Ledger, pipeline: Pipeline, every: float) -> None:
        self._ledger = ledger
        self._pipeline = pipeline
        self._every = every
        self._asked = time.monotonic()

    def look(self, number: int) -> None:
        """Ask if it is time; raise DriverFenced if a newer driver has taken over."""
        if time.monotonic() - self._asked >= self._every:
            self._asked = time.monotonic()
            refuse_overtaken(self._ledger, self._pipeline, number)


def overtaken(
    error: errors.TailraceError, ledger: Ledger, pipeline: Pipeline, number: int, run: str, *, is_open: bool = False
) -> errors.TailraceError:
    """Return the error, or DriverFenced if a newer driver has taken over meanwhile, which explains it.

    The batch `is_open` if only a newer driver can have noted it as done.
    """
    if isinstance(error, errors.KafkaError | errors.DriverFenced):  # unreachable brokers cannot show it
        return error
    try:
        require_lead(ledger, pipeline, number, run, is_open=is_open)
        # A newer driver that still finishes this batch has fenced its sink partitions, and planned nothing yet. One
        # with the same checkpoint has written to Spark's log, which ends this query.
        if isinstance(error, _TOLD_BY_TASKS) and ledger.overtaken():
            return _fenced(pipeline, number)
    except errors.TailraceError as found:
        return found if isinstance(found, errors.DriverFenced) else error
    return error


def _fenced(pipeline: Pipeline, number: int, reached: str = "") -> errors.DriverFenced:
    return errors.DriverFenced(
        f"batch {number} of pipeline {pipeline.pipeline!r}: a newer driver has taken over{reached}",
        kept="what this driver committed stays; the newer driver delivers everything else",
        then="if you did not mean to run a second driver, find the one with the same pipeline name",
    )
