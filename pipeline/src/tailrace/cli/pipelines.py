"""`tailrace pipelines`: the Pipelines of a Kubernetes cluster.

`rollback`, `retry` and `promote` mark a revision and leave the spec alone: whoever applies the spec again, a person or
a GitOps tool, changes nothing by it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tailrace.cli.cluster import PROMOTED, Cluster
from tailrace.cli.terminal import Output, OutputOption, done, emit, say, table
from tailrace.config.resource import FAILED, OPERATION, OPERATIONS, STABLE
from tailrace.errors import NotComparable, OptionRefused

app = typer.Typer(
    help="Show and steer Pipelines on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The Pipeline.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Its namespace; default: that of the kubeconfig's context.")
]
_POLL = 1.0
_COLUMNS = ("namespace", "name", "phase", "ready", "running", "wanted", "lag", "records/s")


@app.command("list")
def list_(
    namespace: NamespaceOption = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of all namespaces.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """List Pipelines with their phase, revision and lag."""
    found = [_row(each) for each in Cluster.of(namespace).pipelines(everywhere)]
    if output is Output.JSON:
        emit({"pipelines": [dict(zip(_COLUMNS, row, strict=True)) for row in found]})
        return
    table(_COLUMNS, found)
    done(f"{len(found)} pipelines", "tailrace pipelines status NAME")


@app.command()
def status(name: NameArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show a Pipeline's conditions, revisions and last error."""
    cluster = Cluster.of(namespace)
    body = cluster.pipeline(name)
    found: Mapping[str, Any] = body.get("status") or {}
    if output is Output.JSON:
        emit({"name": name, "namespace": cluster.namespace, **found})
        return
    table(_COLUMNS, [_row(body)])
    say()
    conditions = found.get("conditions", ())
    names = ("type", "status", "reason", "lastTransitionTime", "message")
    table(("condition", "is", "reason", "since", "why"), [[each.get(key) for key in names] for each in conditions])
    say()
    keys = ("revision", "number", "changed", "stableSince", "failed")
    rows = [[each.get(key) for key in keys] for each in found.get("history", ())]
    table(("revision", "number", "changed", "stable since", "failed"), rows)
    error = found.get("lastError")
    if error:
        say()
        say(f"{error.get('driver')}: {error.get('message')}")
    done(_words(name, found), f"tailrace pipelines logs {name}")


@app.command()
def logs(
    name: NameArgument,
    namespace: NamespaceOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", min=1, help="Only the last ones.")] = None,
) -> None:
    """Write the log of the driver that works, or of the newest one."""
    cluster = Cluster.of(namespace)
    try:
        for line in cluster.logs(cluster.driver(name), follow, lines):
            say(line)
    except KeyboardInterrupt:
        sys.stdout.flush()


@app.command()
def suspend(name: NameArgument, namespace: NamespaceOption = None) -> None:
    """Let no driver run; the batch in progress is finished, and everything stays."""
    Cluster.of(namespace).change(name, {"suspend": True})
    done(f"{name} is to run no driver", f"tailrace pipelines resume {name}")


@app.command()
def resume(name: NameArgument, namespace: NamespaceOption = None) -> None:
    """Let a suspended Pipeline go on where it was."""
    Cluster.of(namespace).change(name, {"suspend": None})
    done(f"{name} is to run", f"tailrace pipelines status {name}")


@app.command()
def rollback(
    name: NameArgument,
    namespace: NamespaceOption = None,
    why: Annotated[str, typer.Option("--why", help="For those who look at its status.")] = "by hand",
) -> None:
    """Leave the revision of the spec for the last one that worked."""
    cluster = Cluster.of(namespace)
    wanted, known = _wanted(cluster, name)
    stable = [each for each, notes in known.items() if each != wanted and _works(notes)]
    if not stable:
        then = f"correct the spec and apply it, or: tailrace pipelines suspend {name}"
        raise OptionRefused(f"no other revision of {name} was seen to work", kept="nothing was changed", then=then)
    cluster.note(name, wanted, {FAILED: f"Requested: {' '.join(why.split())}"})
    done(f"{name} goes from {wanted} back to {stable[-1]}", f"tailrace pipelines retry {name}")


@app.command()
def retry(name: NameArgument, namespace: NamespaceOption = None) -> None:
    """Run the revision of the spec again, although it failed or was left."""
    cluster = Cluster.of(namespace)
    wanted, known = _wanted(cluster, name)
    if not known.get(wanted, {}).get(FAILED):
        done(f"{wanted} is what {name} is to run anyway", f"tailrace pipelines status {name}")
        return
    cluster.note(name, wanted, {FAILED: None})
    done(f"{name} tries {wanted} again", f"tailrace pipelines status {name}")


@app.command()
def operate(
    name: NameArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="offsets, rejected or shadow, without the file.")
    ],
    namespace: NamespaceOption = None,
) -> None:
    """Run a command of `tailrace offsets`, `rejected` or `shadow` once, beside the Pipeline or while it rests."""
    cluster = Cluster.of(namespace)
    cluster.pipeline(name)
    made = cluster.create(OPERATION, OPERATIONS, f"{name}-", {"pipeline": name, "run": command})
    done(f"{made} is to run: tailrace {' '.join(command)}", f"kubectl get tlrop {made} -n {cluster.namespace}")


@app.command()
def shadow(
    name: NameArgument,
    namespace: NamespaceOption = None,
    limit: Annotated[float, typer.Option("--limit", min=1, help="Seconds to wait for the counts.")] = 300.0,
    output: OutputOption = Output.TEXT,
) -> None:
    """Compare the outputs of a Pipeline and of its shadow, and show the counts; its status keeps them."""
    cluster = Cluster.of(namespace)
    found = _shadow(cluster.pipeline(name), name)
    run = ["shadow", "diff", "--live", name, "--sink", found["liveTopic"]]
    made = cluster.create(
        OPERATION, OPERATIONS, f"{found['pipeline']}-diff-", {"pipeline": found["pipeline"], "run": run}
    )
    then, until = f"kubectl logs job/{made} -n {cluster.namespace}", time.monotonic() + limit
    while (status := cluster.operation(made)).get("phase") not in ("Succeeded", "Failed"):
        if time.monotonic() > until:
            what = f"the comparison {made} has not ended within {limit:g} s: {status.get('message') or 'not seen yet'}"
            raise NotComparable(what, kept="it goes on, and both pipelines do", then=then)
        time.sleep(_POLL)
    if status["phase"] == "Failed":
        what = f"the comparison {made} has failed: {status.get('message')}"
        raise NotComparable(what, kept="both pipelines are unaffected", then=then)
    if output is Output.JSON:
        emit({"pipeline": name, "operation": made, **status.get("result", {})})
        return
    done(str(status.get("message")), f"{then}; or: tailrace pipelines promote {name}")


@app.command()
def promote(
    name: NameArgument,
    namespace: NamespaceOption = None,
    uncompared: Annotated[bool, typer.Option("--uncompared", help="Although nothing was compared.")] = False,
) -> None:
    """Let the live Pipeline run what its shadow tries, by hand-over; the spec stays as it is.

    Move spec.shadow into the spec afterwards: nothing changes by that but that the shadow ends.
    """
    cluster = Cluster.of(namespace)
    _, known = _wanted(cluster, name)
    body = cluster.pipeline(name)
    found = _shadow(body, name)
    base, revision = str(found["base"]), str(found["revision"])
    compared = found.get("compared")
    if not uncompared and not (compared and any(compared.get(each) for each in ("live", "shadow"))):
        raise OptionRefused(
            f"the outputs of {name} and {found['pipeline']} were not compared since the shadow began"
            + (": when they were, neither had any" if compared else ""),
            kept="nothing was changed",
            then=f"tailrace pipelines shadow {name}; or promote it all the same, with --uncompared",
        )
    then = f"tailrace pipelines status {name}; then move spec.shadow into the spec"
    if base == revision:
        done(f"{name} runs {base}, and its shadow runs the same", then)
        return
    if known.get(revision, {}).get(FAILED):
        cluster.note(name, revision, {FAILED: None})
    cluster.note(name, base, {PROMOTED: revision})
    done(f"{name} goes from {base} to {revision}", then)


def _shadow(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return what the status says about a shadow; raise OptionRefused if there is none to compare or promote."""
    status = body.get("status") or {}
    found: Mapping[str, Any] = status.get("shadow") or {}
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions", ())
    ready = next((each for each in conditions if each["type"] == "ShadowReady"), {})
    if found.get("liveTopic") and ready.get("reason") not in ("Invalid", "NameTaken"):
        return found
    why = ready.get("message")
    raise OptionRefused(
        f"{name} has no shadow" + (f": {why}" if why else ""),
        kept="nothing was changed",
        then=f"write what is to differ into spec.shadow of {name}, and apply it",
    )


def _wanted(cluster: Cluster, name: str) -> tuple[str, Mapping[str, Mapping[str, str]]]:
    """Return the revision of the spec, once the operator has seen it, and what is known about all of them."""
    body = cluster.pipeline(name)
    found = body.get("status") or {}
    if found.get("observedGeneration") != body["metadata"]["generation"]:
        raise OptionRefused(
            f"the operator has not looked at the newest spec of {name} yet",
            kept="nothing was changed",
            then=f"tailrace pipelines status {name}; if that does not change, the operator does not run",
        )
    return str(found["revision"]), cluster.revisions(name)


def _works(notes: Mapping[str, str]) -> bool:
    return bool(notes.get(STABLE)) and not notes.get(FAILED)


def _row(body: Mapping[str, Any]) -> Sequence[object]:
    about, found = body["metadata"], body.get("status") or {}
    ready = next((each["status"] for each in found.get("conditions", ()) if each["type"] == "Ready"), None)
    rate = (found.get("rates") or {}).get("processed")
    return (
        about["namespace"], about["name"], found.get("phase"), ready, found.get("running"), found.get("revision"),
        found.get("lag"), rate,
    )  # fmt: skip


def _words(name: str, found: Mapping[str, Any]) -> str:
    if not found:
        return f"{name}: the operator has not seen it yet"
    lag = found.get("lag")
    return f"{name}: {found.get('phase')}" + (f", {lag:,} records behind" if lag is not None else "")
