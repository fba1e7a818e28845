"""Offsets of a topic that was deleted and created again: no command passes them on to the new topic unasked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.threads import Line, deleted, recreated
from tailrace import errors
from tailrace.admin.moved_plan import kept_ids
from tailrace.cli.offsets import app
from tailrace.progress.plan import BatchId, Plan
from tailrace.testing import Record, Topics, produce

pytestmark = pytest.mark.integration

MakeLine = Callable[..., Line]


@dataclass
class Case:
    """A pipeline that has read two topics, of which the first was then recreated and has more records than before."""

    one: Line
    other: str

    @property
    def sections(self) -> dict[str, Any]:
        """Return the pipeline's configuration."""
        return {"source": {"topics": [self.one.source, self.other]}}

    def file(self, **sections: Any) -> Path:
        """Write the configuration to a file."""
        file = self.one.folder / f"{self.one.name}.yaml"
        made = self.one.pipeline(**self.sections | sections)
        file.write_text(json.dumps(made.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
        return file

    def call(self, *arguments: str) -> str:
        """Run `tailrace offsets`; it must succeed."""
        done = CliRunner().invoke(app, [*arguments, "--yes"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def refusal(self, **sections: Any) -> errors.PlanOfAnother:
        """Return what a start says."""
        with pytest.raises(errors.PlanOfAnother) as caught:
            self.one.run(**self.sections | sections)
        return caught.value

    def values(self, sink: str | None = None) -> list[bytes]:
        """Return what is in the sink."""
        return sorted(value or b"" for value in self.one.values(*([sink] if sink else [])))


@pytest.fixture
def case(line: MakeLine, tailrace_topics: Topics) -> Case:
    """Return the pipeline, which refuses to start."""
    case = Case(line(1), tailrace_topics("other"))
    case.one.send([b"a%d" % number for number in range(3)])
    produce(case.one.kafka, case.other, [Record(b"b%d" % number) for number in range(3)])
    case.one.run(**case.sections)
    recreated(case.one)
    case.one.send([b"n%d" % number for number in range(5)])
    return case


OLD = [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
NEW = [b"n0", b"n1", b"n2", b"n3", b"n4"]


def test_printed_command_reads_the_recreated_topic_and_no_other_again(case: Case) -> None:
    """Another topic's records would come out a second time."""
    refused = case.refusal()
    case.call(*shlex.split(refused.then.split("tailrace offsets ")[1].replace("FILE", str(case.file()))))
    case.one.run(**case.sections)
    assert case.values() == [*OLD, *NEW]


def test_printed_command_ends_the_refusal_of_a_topic_that_was_empty(line: MakeLine, tailrace_topics: Topics) -> None:
    """No offset moves, but the ledger gets the new topic's id; repeated, the command changes nothing."""
    case = Case(line(1), tailrace_topics("other"))
    case.one.send([b"a"])
    case.one.run(**case.sections)
    recreated(case.one, case.other)
    produce(case.one.kafka, case.other, [Record(b"n1"), Record(b"n2")])
    command = shlex.split(case.refusal().then.split("tailrace offsets ")[1].replace("FILE", str(case.file())))
    assert "dry run: the plan of" in case.call(*command, "--dry-run")
    assert "at the same offsets, in the ledger" in case.call(*command)
    assert "unchanged" in case.call(*command)
    assert "unchanged" in case.call(*command, "--dry-run")
    case.one.run(**case.sections)
    assert case.values() == [b"a", b"n1", b"n2"]


def test_unmoved_offset_of_another_topic_leaves_the_recreated_one_refused(
    line: MakeLine, tailrace_topics: Topics
) -> None:
    """It says nothing of the recreated topic."""
    case = Case(line(1), tailrace_topics("other"))
    case.one.send([b"a"])
    case.one.run(**case.sections)
    recreated(case.one, case.other)
    assert "unchanged" in case.call("set", str(case.file()), f"{case.one.source}:0=1")
    assert "deleted and created again" in case.refusal().what


def test_offset_of_another_topic_says_nothing_of_the_recreated_one(case: Case) -> None:
    """With its new id, the old offset of the recreated topic would look like one that was read there."""
    case.call("set", str(case.file()), f"{case.other}:0=1")
    assert "deleted and created again" in case.refusal().what
    case.one.run(source={**case.sections["source"], "on_data_loss": "reset"})
    assert case.values() == sorted([*OLD, b"b1", b"b2", *NEW])


def test_offset_of_one_partition_is_not_set_among_old_ones_of_the_recreated_topic(case: Case) -> None:
    """The others would pass for offsets of the new topic."""
    source = case.one.source
    plan = Plan("p", BatchId(0), "out", {source: "old", "b": "same"}, (), 0, {}, done=True)
    target = {(source, 0): 1, (source, 1): 7, ("b", 0): 2}
    ids = {source: "new", "b": "same"}
    with pytest.raises(errors.PlanOfAnother, match="deleted and created again"):
        kept_ids(plan, target, [(source, 0)], ids)
    assert kept_ids(plan, target, [(source, 0), (source, 1)], ids) == ids
    assert kept_ids(plan, target, [("b", 0)], ids) == plan.topics


def test_offset_of_another_topic_is_set_while_one_is_missing(case: Case) -> None:
    """The brokers take no offset of a topic that does not exist: it is kept, and a start says that it is gone."""
    deleted(case.one, case.one.source)
    pattern: dict[str, Any] = {"source": {"topics": [], "pattern": f"{case.one.source}|{case.other}"}}
    case.call("set", str(case.file(**pattern)), f"{case.other}:0=1")
    with pytest.raises(errors.SourceChanged, match="no longer exist"):
        case.one.run(**pattern)
    case.one.run(source=pattern["source"] | {"on_data_loss": "reset"})
    assert case.values() == sorted([*OLD, b"b1", b"b2"])


def test_accepted_sink_is_not_an_accepted_source(case: Case, tailrace_topics: Topics) -> None:
    """A new environment has both another sink and a new source; each is named, and needs a word of its own."""
    sink = {"sink": {"topic": tailrace_topics("next"), "format": "raw"}}
    file = case.file(**sink)
    refused = case.refusal(**sink)
    assert "was planned for the sink" in refused.what
    assert "deleted and created again" in refused.what
    case.call("accept", str(file))
    refused = case.refusal(**sink)
    assert "sink" not in refused.what
    assert "deleted and created again" in refused.what
    case.call("reset", str(file), "--to", "earliest", "--topic", case.one.source)
    case.one.run(**case.sections | sink)
    assert (case.values(), case.values(sink["sink"]["topic"])) == (OLD, NEW)


@pytest.mark.parametrize("has_run", [True, False])
def test_topic_recreated_while_a_person_is_asked_gets_no_offset_of_the_former_one(
    line: MakeLine, tailrace_topics: Topics, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    """Records of the new topic before that offset would never be read; the same command then asks the new topic."""
    one = line(1)
    case = Case(one, tailrace_topics("other"))
    one.send([b"a%d" % number for number in range(3)])
    if has_run:
        one.run(**case.sections)
    one.send([b"b%d" % number for number in range(3)])
    before = one.values()

    def asked(question: str) -> bool:
        recreated(one)
        one.send([*NEW, *NEW])
        return True

    monkeypatch.setattr("tailrace.cli.offsets.confirm", asked)
    monkeypatch.setattr("tailrace.cli.offsets.interactive", lambda: True)
    command = ["reset", str(case.file()), "--to", "latest"]
    with pytest.raises(errors.PlanOfAnother, match="created again") as caught:
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert (caught.value.kept, caught.value.then) == ("nothing was changed", "repeat the command")
    case.call(*command)
    one.send([b"last"])
    one.run(**case.sections)
    assert one.values() == [*before, b"last"]
