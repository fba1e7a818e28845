"""Which revision runs, from what was seen: by table, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace_operator import revisions
from tailrace_operator.decide import decide
from tailrace_operator.model import (
    Hold,
    JobState,
    Key,
    Operation,
    Pod,
    Progress,
    Report,
    Resource,
    Revision,
    Rollout,
    Seen,
)
from tailrace_operator.status import Phase, conditions, phase, status

SPEC = {"config": {"sink": {"topic": "new"}}}
NEW = revisions.digest(SPEC)
RESOURCE = Resource(Key("ns", "p"), "uid", 2, SPEC)
OLD = Revision("old", {"config": {"sink": {"topic": "old"}}}, 1, stable="2026-01-01T00:00:00Z")
WANTED = Revision(NEW, SPEC, 2)
WELL = Report(ready=True, stalled=False, phase="leading")
ROLLING = Rollout(NEW, "digest", 3, Progress.ROLLING, 1, 0)
DONE = replace(ROLLING, progress=Progress.DONE, ready=1)
LATE = replace(ROLLING, progress=Progress.LATE, message="has timed out")
WORKS = Pod("p-1", "2026-01-01", "10.0.0.1", ready=True)
REFUSED = Pod("p-2", "2026-01-02", "", ready=False, restarts=1, message='{"code":"TR-102"}', exit_code=2, revision=NEW)
AWAY = replace(REFUSED, exit_code=3, message='{"code":"TR-201"}')
BOTH = (OLD, WANTED)


def seen(**given: object) -> Seen:
    """Return what was seen."""
    return replace(Seen(RESOURCE, BOTH), **given)  # type: ignore[arg-type]


def test_last_revision_that_works_is_kept_behind_one_that_was_left_by_hand() -> None:
    """A rollback does not go to the latter, so the former must be there."""
    failed = [Revision(f"r{number}", {}, number, failed="no") for number in range(2, 12)]
    left = Revision("left", {}, 12, stable="2026-01-02T00:00:00Z", failed="Requested: slow")
    known = [OLD, *failed, left, Revision("new", {}, 13)]
    assert [each.name for each in revisions.surplus(known, frozenset({"new"}))] == ["r2", "r3"]


def test_first_revision_runs() -> None:
    """There is nothing else."""
    found = decide(Seen(RESOURCE))
    assert (found.run, found.wanted.number, found.hold) == (found.wanted, 1, None)
    assert found.run is not None
    assert found.run.name == NEW


@pytest.mark.parametrize(
    ("given", "run", "learned"),
    [
        ({"rollout": ROLLING}, NEW, ("", None)),
        ({"rollout": DONE, "report": WELL}, NEW, (NEW, None)),
        ({"rollout": DONE}, NEW, ("", None)),
        ({"rollout": DONE, "report": replace(WELL, ready=False)}, NEW, ("", None)),
        ({"rollout": DONE, "report": replace(WELL, stalled=True)}, NEW, ("", None)),
        ({"rollout": replace(DONE, replicas=0)}, NEW, ("", None)),
        ({"rollout": LATE}, "old", ("", (NEW, "ProgressDeadlineExceeded: has timed out"))),
        (
            {"rollout": LATE, "pods": (WORKS, replace(REFUSED, waiting="ImagePullBackOff", message="no such image"))},
            "old",
            ("", (NEW, "ProgressDeadlineExceeded: p-2: ImagePullBackOff no such image")),
        ),
        (
            {"rollout": ROLLING, "pods": (WORKS, REFUSED)},
            "old",
            ("", (NEW, 'ConfigurationRefused: p-2: {"code":"TR-102"}')),
        ),
        # The pod of the revision before, which was replaced because it ends so, or one whose revision is not known yet.
        ({"rollout": ROLLING, "pods": (replace(REFUSED, revision="old"),)}, NEW, ("", None)),
        ({"rollout": ROLLING, "pods": (replace(REFUSED, revision=""),)}, NEW, ("", None)),
        (
            {"rollout": LATE, "pods": (replace(REFUSED, revision="old"),)},
            "old",
            ("", (NEW, "ProgressDeadlineExceeded: has timed out")),
        ),
        # Brokers that are away are nothing that another revision mends.
        ({"rollout": ROLLING, "pods": (WORKS, AWAY)}, NEW, ("", None)),
        # What the old revision's Deployment shows is nothing about the new one.
        ({"rollout": replace(LATE, revision="old")}, NEW, ("", None)),
        ({"rollout": replace(DONE, revision="old"), "report": WELL}, NEW, ("", None)),
        # Nothing that has worked is left for what it does later.
        ({"rollout": LATE, "revisions": (OLD, replace(WANTED, stable="then"))}, NEW, ("", None)),
        # What has failed is not tried again.
        ({"rollout": ROLLING, "revisions": (OLD, replace(WANTED, failed="Requested: slow"))}, "old", ("", None)),
        # With nothing to go back to, it goes on trying.
        ({"rollout": LATE, "revisions": (replace(OLD, stable=""), WANTED)}, NEW, ("", None)),
        ({"rollout": LATE, "revisions": (replace(OLD, failed="why"), WANTED)}, NEW, ("", None)),
    ],
)
def test_revision_that_runs(given: dict[str, object], run: str, learned: tuple[str, tuple[str, str] | None]) -> None:
    """It is the wanted one, until that is known not to work and another is known to."""
    found = decide(seen(**given))
    assert found.run is not None
    assert (found.run.name, (found.stable, found.failed)) == (run, learned)


SINK = "ProgressDeadlineExceeded: p-2: CrashLoopBackOff TR-310 plan for another sink or source: it writes to 'new'"
ACCEPT = Operation("o", "uid", "2026-01-01", ("offsets", "accept"), "Running", job=JobState.RUNNING)
ACCEPTED = replace(ACCEPT, job=JobState.DONE)


@pytest.mark.parametrize(
    ("failed", "operation", "run", "marked"),
    [
        (SINK, ACCEPT, NEW, SINK),
        (SINK, replace(ACCEPT, job=JobState.NONE), NEW, SINK),
        (SINK, ACCEPTED, NEW, ""),
        (SINK, replace(ACCEPT, job=JobState.FAILED), NEW, SINK),
        (SINK, replace(ACCEPTED, run=(*ACCEPT.run, "--dry-run")), NEW, SINK),
        (SINK, None, "old", SINK),
        # What moves offsets would accept the sink as well, and the revision that runs would be refused.
        (SINK, replace(ACCEPTED, run=("offsets", "reset")), "old", SINK),
        # The plan has the wanted sink, and the revision before is the one that is refused.
        ("Requested: TR-310 is odd", ACCEPTED, "old", "Requested: TR-310 is odd"),
        ("ConfigurationRefused: p-2: TR-102 no fee", ACCEPTED, "old", "ConfigurationRefused: p-2: TR-102 no fee"),
    ],
)
def test_sink_is_accepted_with_the_revision_that_was_left_for_it(
    failed: str, operation: Operation | None, run: str, marked: str
) -> None:
    """With the revision before, nothing would change; once it is accepted, the revision runs as after a retry."""
    left = replace(WANTED, failed=failed)
    rollout = replace(DONE, revision="old", replicas=0)
    found = decide(seen(revisions=(OLD, left), rollout=rollout, operation=operation))
    assert found.run is not None
    assert (found.run.name, found.wanted.failed, found.failed) == (run, marked, None)
    assert found.rolled_back == ("" if run == NEW else failed)
    assert found.running is (operation is None)


@pytest.mark.parametrize(
    ("given", "refused", "hold"),
    [
        ({"resource": replace(RESOURCE, spec=SPEC | {"paused": True})}, "wrong", Hold.PAUSED),
        ({"rollout": replace(DONE, owned=False)}, "", Hold.NAME_TAKEN),
        ({}, "wrong", Hold.INVALID),
    ],
)
def test_nothing_is_applied_on_hold(given: dict[str, object], refused: str, hold: Hold) -> None:
    """What runs goes on as it is."""
    found = decide(seen(**given), refused)
    assert (found.run, found.hold) == (None, hold)


RESET = Operation("o", "uid", "2026-01-01", ("offsets", "reset"), "Running", job=JobState.RUNNING)
STOPPED = replace(DONE, revision="old", replicas=0)
SUSPENDED = {"resource": replace(RESOURCE, spec=SPEC | {"suspend": True})}


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ({"rollout": STOPPED}, True),
        ({"rollout": replace(DONE, revision="old"), **SUSPENDED}, False),
        ({"rollout": STOPPED, **SUSPENDED}, None),
        ({"rollout": replace(DONE, revision="old")}, None),
        ({"rollout": replace(DONE, revision="unknown"), **SUSPENDED}, None),
        # An operation that has begun is not disturbed, and one that has not waits for another spec.
        ({"rollout": STOPPED, "operation": RESET}, None),
        ({"rollout": STOPPED, "operation": replace(RESET, job=JobState.NONE)}, True),
        ({"rollout": replace(DONE, revision="old"), "operation": replace(RESET, job=JobState.NONE)}, None),
        ({"rollout": STOPPED, "operation": ACCEPTED}, None),
    ],
)
def test_refused_spec_lets_a_driver_neither_rest_nor_run_for_ever(given: dict[str, object], runs: bool | None) -> None:
    """A typing error beside `suspend` did not stop it, and one during an operation kept it from coming back."""
    found = decide(seen(**given), "wrong")
    assert (found.hold, found.why) == (Hold.INVALID, "wrong")
    assert found.run == (None if runs is None else OLD)
    assert runs is None or found.running is runs


def test_switches_are_no_part_of_a_revision() -> None:
    """Suspending and resuming gives back the same revision."""
    resource = replace(RESOURCE, spec=SPEC | {"suspend": True})
    found = decide(seen(resource=resource))
    assert (found.wanted.name, found.running) == (NEW, False)


def test_revision_that_is_wanted_again_is_the_newest() -> None:
    """So a later failure goes back to what ran last, and not to what was made last."""
    between = Revision("between", {}, 2, stable="2026-01-02T00:00:00Z")
    again = revisions.wanted(replace(RESOURCE, spec=dict(OLD.spec)), [replace(OLD, name=digest_of(OLD)), between])
    assert (again.number, again.stable) == (3, OLD.stable)
    found = decide(seen(revisions=(between, again, replace(WANTED, number=4)), rollout=LATE))
    assert found.run == again


def digest_of(revision: Revision) -> str:
    """Return the name that a revision has by its spec."""
    return revisions.digest(revision.spec)


def test_last_stable_revision_outlives_many_failed_ones() -> None:
    """However often an upgrade fails, there is one to go back to."""
    failed = [Revision(f"r{number}", {}, number, failed="why") for number in range(2, 30)]
    gone = revisions.surplus([OLD, *failed], frozenset({"r29"}))
    assert OLD not in gone
    assert {each.name for each in gone} == {f"r{number}" for number in range(2, 20)}


@pytest.mark.parametrize(
    ("given", "word", "ready"),
    [
        ({}, Phase.STARTING, "NoDriver"),
        ({"rollout": ROLLING, "pods": (WORKS,), "report": WELL}, Phase.UPGRADING, "Leading"),
        ({"rollout": DONE, "pods": (WORKS,), "report": WELL}, Phase.RUNNING, "Leading"),
        # A roll-out that is stuck, of a revision that has worked before.
        (
            {"rollout": LATE, "report": WELL, "revisions": (OLD, replace(WANTED, stable="then"))},
            Phase.UPGRADING,
            "Leading",
        ),
        ({"rollout": DONE, "pods": (WORKS,)}, Phase.RUNNING, "Unheard"),
        ({"rollout": DONE, "report": replace(WELL, stalled=True)}, Phase.STALLED, "Leading"),
        ({"rollout": DONE, "pods": (WORKS,), "report": Report(False, False, "standby")}, Phase.STARTING, "Standby"),
        ({"rollout": ROLLING, "pods": (AWAY,)}, Phase.FAILING, "DriverEnded"),
        ({"rollout": ROLLING, "pods": (replace(AWAY, waiting="CrashLoopBackOff"),)}, Phase.FAILING, "CrashLoopBackOff"),
        ({"rollout": ROLLING, "pods": (replace(AWAY, exit_code=None),)}, Phase.STARTING, "Starting"),
        (
            {"resource": replace(RESOURCE, spec=SPEC | {"suspend": True}), "rollout": replace(DONE, replicas=0)},
            Phase.SUSPENDED,
            "Suspended",
        ),
        (
            {
                "rollout": replace(DONE, revision="old"),
                "revisions": (OLD, replace(WANTED, failed="Requested: slow")),
                "report": WELL,
            },
            Phase.ROLLED_BACK,
            "Leading",
        ),
    ],
)
def test_phase_says_what_matters_most(given: dict[str, object], word: Phase, ready: str) -> None:
    """One word for a list, and a reason for those who look closer."""
    state = seen(**given)
    choice = decide(state)
    found = {each.type: each for each in conditions(state, choice)}
    assert (phase(state, choice, found), found["Ready"].reason) == (word, ready)


OLDER = replace(WORKS, revision="old")
NEWER = Pod("p-2", "2026-01-02", "10.0.0.2", ready=True, revision=NEW)
STANDS_BY = replace(WELL, ready=False, phase="standby", driver="p-2")


@pytest.mark.parametrize(
    ("given", "running"),
    [
        ({}, ""),
        ({"rollout": ROLLING}, NEW),
        ({"rollout": ROLLING, "pods": (OLDER, REFUSED), "report": replace(WELL, driver="p-1")}, "old"),
        ({"rollout": ROLLING, "pods": (OLDER, NEWER), "report": replace(WELL, driver="p-2")}, NEW),
        ({"rollout": ROLLING, "pods": (OLDER, NEWER), "report": STANDS_BY}, "old"),
        ({"rollout": ROLLING, "pods": (OLDER, NEWER)}, "old"),
        ({"rollout": ROLLING, "pods": (REFUSED,)}, NEW),
        ({"rollout": DONE, "pods": (WORKS,), "report": replace(WELL, driver="p-1")}, NEW),
    ],
)
def test_running_revision_is_the_leading_drivers(given: dict[str, object], running: str) -> None:
    """A Deployment has the new one as soon as it is applied, while the driver before still works."""
    state = seen(**given)
    assert status(state, decide(state), "now").get("running", "") == running


@pytest.mark.parametrize("message", ["", "back-off 10s restarting failed container", "Insufficient cpu"])
def test_revision_that_was_left_says_its_code(message: str) -> None:
    """The driver that could have said it is gone, or has ended once more without a word."""
    failed = replace(WANTED, failed="ConfigurationRefused: p-2: TR-102 function missing: no fee in fees.py")
    left = [replace(REFUSED, waiting="CrashLoopBackOff", message=message)] if message else []
    state = seen(rollout=replace(DONE, revision="old"), pods=(WORKS, *left), report=WELL, revisions=(OLD, failed))
    found = status(state, decide(state), "now")
    assert (found["phase"], found["lastError"]["code"]) == ("RolledBack", "TR-102")
    assert "no fee in fees.py" in found["lastError"]["message"]


def test_condition_keeps_the_time_of_its_last_change() -> None:
    """Since when it is so is what one asks at night."""
    state = seen(rollout=DONE, pods=(WORKS,), report=WELL)
    first = status(state, decide(state), "2026-01-01T00:00:00Z")
    later = replace(state, resource=replace(RESOURCE, status=first), report=replace(WELL, stalled=True))
    second = status(later, decide(later), "2026-01-02T00:00:00Z")
    times = {each["type"]: each["lastTransitionTime"][:10] for each in second["conditions"]}
    assert times == {"Accepted": "2026-01-01", "Ready": "2026-01-01", "Progressing": "2026-01-01"} | {
        "RolledBack": "2026-01-01",
        "DependenciesReady": "2026-01-01",
        "Stalled": "2026-01-02",
    }
