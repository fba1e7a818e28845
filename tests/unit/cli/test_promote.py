"""`tailrace pipelines shadow` and `promote`: what they ask of the cluster, and when they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace import errors
from tailrace.cli import cluster, pipelines
from tailrace.cli.main import app
from tailrace.config.resource import FAILED
from tailrace_operator.model import PROMOTED

RUN = CliRunner()
SHADOW: dict[str, Any] = {
    "pipeline": "orders-shadow", "topic": "b-shadow", "liveTopic": "b", "base": "w", "revision": "p",
    "compared": {"live": 3, "shadow": 3, "equal": 3},
}  # fmt: skip


class Fake:
    """A cluster with one Pipeline, whose comparisons end as they are told."""

    namespace = "ns"

    def __init__(self, shadow: dict[str, Any], reason: str = "Working") -> None:
        conditions = [{"type": "ShadowReady", "reason": reason, "message": "why"}]
        status = {"observedGeneration": 1, "revision": "w", "shadow": shadow, "conditions": conditions}
        self.body = {"metadata": {"generation": 1}, "status": status}
        self.known: dict[str, dict[str, str]] = {"w": {}, "p": {FAILED: "Requested: slow"}}
        self.noted: list[tuple[str, dict[str, str | None]]] = []
        self.made: list[dict[str, Any]] = []
        self.states: list[dict[str, Any]] = []

    def pipeline(self, name: str) -> dict[str, Any]:
        """Return it."""
        return self.body

    def revisions(self, name: str) -> dict[str, dict[str, str]]:
        """Return what is known about its revisions."""
        return self.known

    def note(self, name: str, revision: str, notes: dict[str, str | None]) -> None:
        """Keep a note."""
        self.noted.append((revision, notes))

    def create(self, kind: str, plural: str, prefix: str, spec: dict[str, Any]) -> str:
        """Keep an operation."""
        self.made.append(spec)
        return f"{prefix}x"

    def operation(self, name: str) -> dict[str, Any]:
        """Return its next state, and the last one for ever."""
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def run(monkeypatch: pytest.MonkeyPatch, fake: Fake, *command: str) -> Result:
    """Run a command of `tailrace pipelines`."""
    monkeypatch.setattr(cluster.Cluster, "of", lambda _: fake)
    monkeypatch.setattr(pipelines, "_POLL", 0.0)
    return RUN.invoke(app, ["pipelines", *command, "orders"])


def test_mark_has_one_name() -> None:
    """The command writes what the operator reads, though neither imports the other."""
    assert cluster.PROMOTED == PROMOTED


def test_promotion_marks_the_revision_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tries a revision again that was left before."""
    fake = Fake(SHADOW)
    assert "from w to p" in run(monkeypatch, fake, "promote").stdout
    assert fake.noted == [("p", {FAILED: None}), ("w", {PROMOTED: "p"})]


def test_promotion_of_what_runs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the overlay was moved into the spec, and left in the shadow."""
    fake = Fake({**SHADOW, "revision": "w"})
    assert run(monkeypatch, fake, "promote").exit_code == 0
    assert fake.noted == []


@pytest.mark.parametrize(
    ("shadow", "reason"),
    [({}, ""), ({"pipeline": "orders-shadow"}, "Invalid"), (SHADOW, "Invalid"), (SHADOW, "NameTaken")],
)
@pytest.mark.parametrize("command", ["promote", "shadow"])
def test_pipeline_without_a_shadow_is_refused(
    monkeypatch: pytest.MonkeyPatch, command: str, shadow: dict[str, Any], reason: str
) -> None:
    """Or with one that the operator refuses, in its words."""
    fake = Fake(shadow, reason)
    found = run(monkeypatch, fake, command).exception
    assert isinstance(found, errors.OptionRefused)
    assert "why" in found.what
    assert (fake.noted, fake.made) == ([], [])


@pytest.mark.parametrize("compared", [{}, {"live": 0, "shadow": 0, "equal": 0, "different": 0}])
def test_shadow_that_was_not_compared_is_promoted_only_on_request(
    monkeypatch: pytest.MonkeyPatch, compared: dict[str, int]
) -> None:
    """A promotion of something unseen is a mistake more often than not, also after a comparison of nothing."""
    fake = Fake({**SHADOW, "compared": compared})
    assert isinstance(run(monkeypatch, fake, "promote").exception, errors.OptionRefused)
    assert fake.noted == []
    assert run(monkeypatch, fake, "promote", "--uncompared").exit_code == 0
    assert fake.noted


def test_comparison_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs with the shadow's configuration, and its counts are shown."""
    fake = Fake(SHADOW)
    fake.states = [{}, {"phase": "Running"}, {"phase": "Succeeded", "message": "3 equal", "result": {"equal": 3}}]
    assert "3 equal" in run(monkeypatch, fake, "shadow").stdout
    run_ = ["shadow", "diff", "--live", "orders", "--sink", "b"]
    assert fake.made == [{"pipeline": "orders-shadow", "run": run_}]
    assert '"equal": 3' in run(monkeypatch, fake, "shadow", "--output=json").stdout


@pytest.mark.parametrize(
    ("state", "more", "words"),
    [
        ({"phase": "Failed", "message": "TR-602"}, (), "TR-602"),
        ({"phase": "Waiting", "message": "its driver"}, ("--limit=1",), "its driver"),
    ],
)
def test_comparison_that_does_not_succeed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], more: tuple[str, ...], words: str
) -> None:
    """With its message, or what it waits for."""
    fake = Fake(SHADOW)
    fake.states = [state]
    found = run(monkeypatch, fake, "shadow", *more).exception
    assert isinstance(found, errors.NotComparable)
    assert words in found.what
