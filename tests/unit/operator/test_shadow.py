"""What may be a shadow, when it begins, and what the live Pipeline's status says of it: by table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.config import Pipeline
from tailrace_operator import operate, shadow
from tailrace_operator.model import PARTITIONS, SHADOW, Ended, Key, Operation, Report, Resource, Seen
from tailrace_operator.observe import resource as parsed
from tailrace_operator.shadow import Known, Uses

LIVE: dict[str, Any] = {"pipeline": "p", "source": {"topics": ["a"]}, "sink": {"topic": "b"}}
TRIES = {**LIVE, "pipeline": "p-shadow", "sink": {"topic": "b-shadow"}}
STATEFUL = {"checkpoint": "s3a://bucket/p"}
SPEC: dict[str, Any] = {"config": {}, "shadow": {"image": {}}}
RESOURCE = Resource(Key("ns", "p"), "uid", 1, SPEC)
BEGIN = Operation("p-shadow-begin-1", "u", "2026-01-01T00:00:00Z", ("shadow", "begin"), "Succeeded")
BEGAN = replace(BEGIN, finished="2026-01-01T00:00:20Z")
COUNTS = {"live": 9, "shadow": 8, "equal": 8, "different": 0, "onlyLive": 1, "onlyShadow": 0}
DIFF = Operation("d", "u", "2026-01-01T00:01:00Z", ("shadow", "diff"), "Succeeded", result=COUNTS, message="words")
KNOWN = Known(Key("ns", "p-shadow"), "b-shadow", "b", "w", "p", "w", begin=BEGAN, delivered=True)
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize(
    ("live", "tries", "words"),
    [
        ({}, {}, ""),
        ({}, {"sink": {"topic": "b"}}, "b, which the live pipeline uses: its sink"),
        ({}, {"sink": {"topic": "p.rejected"}}, "its rejected records"),
        ({}, {"sink": {"topic": "tailrace.plans"}, "ledger": {"topic": "x"}}, "the ledger"),
        ({"source": {"topics": ["a", "c"]}}, {"sink": {"topic": "c"}}, "its source"),
        ({"source": {"pattern": "b-.*"}}, {}, "b-shadow, which the live pipeline uses: its source.pattern 'b-.*'"),
        (
            {"source": {"pattern": "p-.*"}},
            {},
            "rejected records to p-shadow.rejected, which the live pipeline uses: its",
        ),
        ({"source": {"pattern": "x"}}, {"source": {"pattern": "p-.*"}}, "p-shadow.rejected, which the shadow itself"),
        ({}, {"sink": {"topic": "theirs"}}, "theirs, which q uses"),
        ({}, {"sink": {"topic": "their-own"}}, "their-own, which s uses"),
        ({}, {"pipeline": "q-shadow"}, "q-shadow.rejected, which t uses: its source.pattern"),
        ({}, {"pipeline": "u-shadow"}, "rejected records to u-shadow.rejected, which u uses"),
        (STATEFUL, {}, "the pipeline is stateful"),
        ({}, STATEFUL, "its shadow is stateful"),
        ({}, {"sink": {"topics": ["x", "y"]}}, "name their own topics"),
        ({}, {"rejected": "bad"}, "defaults"),
        ({}, {"offsets": {"from": "group"}}, "defaults"),
    ],
)
def test_shadow_that_could_reach_the_live_pipeline_is_refused(
    live: dict[str, Any], tries: dict[str, Any], words: str
) -> None:
    """With the topic, and what else uses it."""
    given = {**LIVE, "ledger": {"topic": "tailrace.plans"}, **live}
    pipeline, own = (Pipeline.model_validate(each) for each in (given, {**TRIES, **tries}))
    others = (
        Uses("q", {"theirs"}),
        Uses("r", set(), "odd("),
        Uses("s", set(), "their.*"),
        Uses("t", set(), r"q.*w\.rejected"),
        Uses("u", {"u-shadow.rejected"}),
    )
    found = shadow.problem(pipeline, own, iter(others))
    assert words in found
    assert bool(found) is bool(words)


def test_overlay_and_name_of_a_shadow_are_checked() -> None:
    """A name that the chart would cut belongs to objects that nobody finds."""
    assert "config.sink.topic" in shadow.wrong(Key("ns", "p"), {"config": {"sink": {"topic": "b"}}})
    assert shadow.wrong(Key("ns", "p" * 39), SPEC["shadow"]) == ""
    assert "39 characters" in shadow.wrong(Key("ns", "p" * 40), SPEC["shadow"])


def test_shadow_goes_with_its_pipeline() -> None:
    """It is owned by it, and says how many partitions its sink topic has."""
    made = shadow.body(RESOURCE, Key("ns", "p-shadow"), {"config": {}}, 4)
    assert shadow.owned(made, RESOURCE)
    assert not shadow.owned(made, replace(RESOURCE, uid="another"))
    assert not shadow.owned({"metadata": {}}, RESOURCE)
    assert made["metadata"]["labels"] == {SHADOW: "p"}
    made["metadata"] |= {"uid": "u", "generation": 1}
    assert parsed(made).partitions == 4
    assert PARTITIONS not in shadow.body(RESOURCE, Key("ns", "p-shadow"), {}, 0)["metadata"]["annotations"]


def test_each_spec_of_a_shadow_begins_once() -> None:
    """Another spec, sink or shadow of this name begins again; the number of executors does not."""

    def name(spec: dict[str, Any], live: str = "b", uid: str = "u") -> str:
        there = {"metadata": {"name": "p-shadow", "namespace": "ns", "uid": uid}, "spec": spec}
        made = shadow.begin(RESOURCE, there, live)
        run = ["shadow", "begin", "--live", "p", "--sink", live, "--again"]
        assert made["spec"] == {"pipeline": "p-shadow", "run": run}
        assert len(made["metadata"]["name"]) <= 63
        return str(made["metadata"]["name"])

    same = {name({"config": {}, "suspend": each, "executors": {"instances": 3}}) for each in (True, False)}
    assert len(same | {name({"config": {}})}) == 1
    others = {name({"config": {"batch": {}}}), name({"config": {}}, live="c"), name({"config": {}}, uid="v")}
    assert len(same | others) == 4


def test_spec_of_a_shadow_that_comes_again_begins_again() -> None:
    """What was compared meanwhile are outputs of another spec."""

    def name(batch: str, *before: str) -> str:
        there = {"metadata": {"name": "p" * 39, "namespace": "ns", "uid": "u"}, "spec": {"config": {"x": batch}}}
        ended = [replace(BEGAN, name=each, finished=f"2026-01-01T00:0{at}:00Z") for at, each in enumerate(before)]
        made = str(shadow.begin(RESOURCE, there, "b", ended)["metadata"]["name"])
        assert len(made) <= 63
        return made

    first = name("a")
    assert name("a", first) == first
    other = name("b", first)
    again = name("a", first, other)
    assert again not in (first, other)
    assert name("a", first, other, again) == again
    assert name("a", again) == again
    assert name("b", first, other, again) not in (first, other, again)


def test_comparison_counts_only_since_the_shadow_began() -> None:
    """The newest one, whatever became of it; a person may let a shadow begin again."""
    later = replace(DIFF, name="e", created="2026-01-01T00:02:00Z", phase="Running", result={})
    before = replace(DIFF, name="c", created="2026-01-01T00:00:10Z")
    found = shadow.with_operations(KNOWN, BEGAN.name, [before, BEGAN, later, DIFF])
    assert (found.begin, found.compare, found.counted) == (BEGAN, later, DIFF)
    again = replace(BEGAN, name="by-hand", created="2026-01-01T00:03:00Z", finished="2026-01-01T00:03:10Z")
    assert shadow.with_operations(KNOWN, BEGAN.name, [BEGAN, later, again]).compare is None
    assert shadow.with_operations(KNOWN, "another", [BEGAN, DIFF]).begin is None


@pytest.mark.parametrize(
    ("given", "holds", "reason", "words"),
    [
        ({"child": READY}, True, "Working", "b-shadow"),
        ({"child": {"phase": "Starting", "conditions": []}}, False, "NotReady", "Starting"),
        ({"child": None}, False, "NotReady", ""),
        ({"taken": True}, False, "NameTaken", "p-shadow exists"),
        ({"problem": "it is so"}, False, "Invalid", "it is so"),
        ({"suspended": True}, False, "Suspended", ""),
        ({"begin": None}, False, "Beginning", ""),
        ({"begin": None, "delivered": False}, False, "WaitingForLive", "batch"),
        ({"begin": replace(BEGIN, phase="Running")}, False, "Beginning", ""),
        ({"begin": replace(BEGIN, phase="")}, False, "Beginning", ""),
        (
            {"begin": replace(BEGIN, phase="Failed", message="TR-602 no plan")},
            False,
            "BeginFailed",
            "TR-602 no plan next: kubectl delete tlrop p-shadow-begin-1 -n ns",
        ),
    ],
)
def test_status_says_what_the_shadow_waits_for(given: dict[str, Any], holds: bool, reason: str, words: str) -> None:
    """With the next command where a person has to act."""
    [found, *_] = shadow.following(replace(KNOWN, **given)).conditions
    assert (found.type, found.holds, found.reason) == ("ShadowReady", holds, reason)
    assert words in found.message


@pytest.mark.parametrize(
    ("compare", "holds", "reason"),
    [
        (None, False, "NotCompared"),
        (replace(DIFF, phase="Waiting"), False, "Comparing"),
        (replace(DIFF, phase="Failed"), False, "CompareFailed"),
        (DIFF, True, "Different"),
        (replace(DIFF, result={**COUNTS, "onlyLive": 0}), True, "Equal"),
        (replace(DIFF, result={}), True, "Unknown"),
    ],
)
def test_status_says_what_the_comparison_found(compare: Operation | None, holds: bool, reason: str) -> None:
    """The counts of the last one that succeeded stay."""
    made = shadow.following(replace(KNOWN, compare=compare, counted=DIFF, child=READY))
    found = made.conditions[1]
    assert (found.type, found.holds, found.reason) == ("ShadowCompared", holds, reason)
    assert made.body["compared"] == {"operation": "d", "finished": "", **COUNTS}
    assert made.body["began"] == BEGAN.finished
    assert (found.message == "next: tailrace pipelines shadow p -n ns") is (compare is None)


@pytest.mark.parametrize(("running", "holds"), [("w", False), ("p", True)])
def test_status_says_that_a_promotion_runs(running: str, holds: bool) -> None:
    """And that the overlay is to be moved into the spec."""
    found = shadow.following(replace(KNOWN, running=running)).conditions[2]
    assert (found.type, found.holds) == ("Promoted", holds)
    assert ("move spec.shadow into the spec" in found.message) is holds


def test_paused_pipeline_says_what_it_said() -> None:
    """Nothing about its shadow is looked at."""
    before = {"type": "ShadowReady", "status": "True", "reason": "Working", "message": "m"}
    status = {"conditions": [before, {"type": "Ready", "status": "True", "reason": "x"}], "shadow": {"topic": "b"}}
    made = shadow.as_before(replace(RESOURCE, status=status))
    assert [(each.type, each.holds, each.reason, each.message) for each in made.conditions] == [
        ("ShadowReady", True, "Working", "m")
    ]
    assert made.body == {"topic": "b"}


@pytest.mark.parametrize(
    ("report", "found"),
    [
        (None, False),
        (Report(True, False, "leading"), False),
        (Report(False, False, "leading", batch={"number": 0}), False),
        (Report(True, False, "leading", batch={"number": 0}), True),
    ],
)
def test_shadow_begins_behind_a_delivered_batch(report: Report | None, found: bool) -> None:
    """Before that, no plan says where the live pipeline is."""
    assert shadow.delivered(Seen(RESOURCE, report=report)) is found


def test_counts_of_a_comparison_are_its_last_words() -> None:
    """Of an image that says none, or of another operation, there are none."""
    words = '{"live": 1200, "shadow": 8, "equal": 8, "different": 0, "only_live": 1, "only_shadow": 0}'
    made = operate.status(DIFF, Ended.SUCCEEDED, words, "t")
    assert made["result"] == COUNTS | {"live": 1200}
    assert made["message"].startswith("compared 1,200 live and 8 shadow records: 8 equal, 0 different, 1 only in live")
    for run, said in ((DIFF.run, "a log"), (DIFF.run, '{"live": 1}'), (("offsets", "show"), words)):
        assert "result" not in operate.status(replace(DIFF, run=run), Ended.SUCCEEDED, said, "t")
    assert "result" not in operate.status(DIFF, Ended.FAILED, words, "t")


def test_beginning_needs_a_rest_and_a_comparison_does_not() -> None:
    """And a comparison leaves its counts where Kubernetes shows them."""
    assert operate.needs_rest(BEGIN)
    assert not operate.needs_rest(DIFF)
    assert operate.arguments(("shadow", "diff", "--live", "p"))[-1] == "--counts-file=/dev/termination-log"
    assert operate.arguments(("shadow", "begin", "--live", "p")) == ["shadow", "begin", operate.FILE, "--live", "p"]
