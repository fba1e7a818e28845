"""Deciding what is to run. The only place that knows about rollbacks; it sees values and returns values.

A revision is stable once its driver was seen to read new records with no other beside it. One that is not there by the
Deployment's progress deadline has failed, or earlier if its driver ends with an error of the configuration, which no
waiting mends. What failed is not run again until its mark is removed, by `tailrace pipelines retry` or by an operation
that accepts its sink; the spec is never edited, so that whoever applies it again changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import ConfigError, PlanOfAnother
from tailrace_operator import operate, revisions
from tailrace_operator.model import Choice, Hold, JobState, Operation, Pod, Progress, Revision, Seen

_BY_HAND = "Requested: "  # how the mark begins that `tailrace pipelines rollback` makes


def decide(seen: Seen, refused: str = "") -> Choice:
    """Return what is to run; `refused` says why the spec cannot."""
    wanted = revisions.wanted(seen.resource, seen.revisions)
    if seen.resource.paused:
        return Choice(wanted, None, hold=Hold.PAUSED)
    if seen.rollout is not None and not seen.rollout.owned:
        why = f"a Deployment {seen.resource.key.name} exists that no Pipeline made"
        return Choice(wanted, None, hold=Hold.NAME_TAKEN, why=why)
    if refused:
        return _as_it_was(seen, Choice(wanted, None, hold=Hold.INVALID, why=refused))
    current = _learned(seen, wanted)
    before = _last_stable(seen, wanted)
    # With nothing to go back to, the wanted one goes on trying.
    rolled_back = current.failed if before is not None else ""
    if rolled_back and _accepts_its_sink(seen.operation, rolled_back):
        # With the configuration of the revision before, the command would accept the sink that the plan has already.
        # Afterwards that revision would be refused, so the wanted one runs.
        rolled_back, wanted = "", _accepted(seen.operation, wanted)
    resting = seen.operation.name if seen.operation is not None and operate.needs_rest(seen.operation) else ""
    return Choice(
        wanted=wanted,
        run=before if before is not None and rolled_back else wanted,
        running=not (seen.resource.suspended or resting),
        resting=resting,
        rolled_back=rolled_back,
        stable=current.name if current.stable and not wanted.stable else "",
        failed=(wanted.name, current.failed) if rolled_back and not wanted.failed else None,
    )


def _as_it_was(seen: Seen, choice: Choice) -> Choice:
    """Return the choice for a refused spec: what runs goes on, but for a suspension, or the end of an operation.

    An operation that has not begun waits for another spec, so no driver rests for it.
    """
    found, operation = seen.rollout, seen.operation
    begun = operation is not None and operation.job not in (JobState.NONE, JobState.OF_ANOTHER)
    resting = operation.name if operation is not None and begun and operate.needs_rest(operation) else ""
    running = not (seen.resource.suspended or resting)
    known = next((each for each in seen.revisions if found is not None and each.name == found.revision), None)
    if found is None or known is None or bool(found.replicas) == running:
        return choice
    return replace(choice, run=known, running=running, resting=resting)


def _learned(seen: Seen, wanted: Revision) -> Revision:
    """Return the wanted revision with what its Deployment shows about it."""
    found = seen.rollout
    if found is None or found.revision != wanted.name or not found.replicas or wanted.stable or wanted.failed:
        return wanted
    if found.progress is Progress.DONE and seen.report is not None and seen.report.ready and not seen.report.stalled:
        return replace(wanted, stable="now")
    broken = newest(seen)
    if broken is not None and broken.revision != wanted.name:  # its own may not be there yet
        broken = None
    if found.progress is Progress.LATE:
        return replace(wanted, failed=_words("ProgressDeadlineExceeded", broken, found.message))
    if broken is not None and broken.exit_code == ConfigError.exit_code and broken.restarts:
        return replace(wanted, failed=_words("ConfigurationRefused", broken, ""))
    return wanted


def _accepts_its_sink(operation: Operation | None, failed: str) -> bool:
    """Return whether an operation accepts the sink for which a revision was left, and no person has left it."""
    another_sink = PlanOfAnother.code in failed and not failed.startswith(_BY_HAND)
    return another_sink and operation is not None and operate.accepts(operation)


def _accepted(operation: Operation | None, wanted: Revision) -> Revision:
    """Return the wanted revision, without its mark if the operation has changed the plan."""
    done = operation is not None and operation.job is JobState.DONE and not operate.is_dry_run(operation)
    return replace(wanted, failed="") if done else wanted


def _last_stable(seen: Seen, wanted: Revision) -> Revision | None:
    found = [each for each in seen.revisions if each.stable and not each.failed and each.name != wanted.name]
    return found[-1] if found else None


def newest(seen: Seen) -> Pod | None:
    """Return the newest pod, unless it is ready."""
    return seen.pods[-1] if seen.pods and not seen.pods[-1].ready else None


def _words(reason: str, pod: Pod | None, otherwise: str) -> str:
    text = otherwise
    if pod is not None and (pod.waiting or pod.message):
        text = f"{pod.name}: {' '.join(filter(None, (pod.waiting, pod.message)))}"
    return f"{reason}: {' '.join(text.split())}"
