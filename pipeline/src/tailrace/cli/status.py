"""`tailrace status`: the driver's status page in the terminal."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tailrace.cli.driver_address import Found, again, clock, found
from tailrace.cli.terminal import Block, Output, OutputOption, Screen, emit, note, say, show
from tailrace.errors import DriverUnreachable
from tailrace.status.health import duration

EVERY: Final = 2.0
_PARTITIONS, _BATCHES, _LOG = 12, 10, 5  # maximum lines of each
_COLOURS = dict.fromkeys(("well", "standby"), "green") | dict.fromkeys(("behind", "rejecting", "searching"), "yellow")
_COLOURS["stuck"] = "bold red"

Status = Mapping[str, Any]


def status(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE or URL]",
            help="The pipeline's configuration or its driver's address; default: the usual port on this machine.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, even on a terminal.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Keep watching, off a terminal too: a line when the state changes, or JSON every two seconds.",
        ),
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show whether a running pipeline is well, since when, and what it is doing.

    With FILE the driver is looked for on this machine, and then where Kafka says that it leads. On a terminal the
    display is live until Ctrl-C; elsewhere it is written once.
    """
    if once and watch:
        raise typer.BadParameter("--once shows it once, --watch keeps watching", param_hint="--watch")
    driver = found(where)
    if not watch and (once or output is not Output.TEXT or not sys.stdout.isatty()):
        if output is Output.TEXT:
            show(blocks(driver.state, where))
            note(f"next: {driver.url} in a browser")
        else:
            emit(driver.state)
        return
    try:
        if output is not Output.TEXT:
            for state, problem in followed(driver, where):
                emit(state if problem is None else problem.as_dict())
        elif sys.stdout.isatty():
            with Screen() as screen:
                for state, problem in followed(driver, where):
                    screen.show([*_no_answer(problem), *blocks(state, where)])
        else:
            for line in changes(followed(driver, where)):
                say(line)
    except KeyboardInterrupt:
        return


def followed(driver: Found, where: str | None) -> Iterator[tuple[Status, DriverUnreachable | None]]:
    """Yield the status every two seconds; while no driver answers, the last one, and why."""
    problem = None
    while True:
        yield driver.state, problem
        time.sleep(EVERY)
        try:
            driver, problem = again(driver, where), None
        except DriverUnreachable as error:
            problem = error


def changes(states: Iterable[tuple[Status, DriverUnreachable | None]]) -> Iterator[str]:
    """Yield a line for each change of the state."""
    before = ""
    for state, problem in states:
        now = "no answer" if problem is not None else _state(state)
        if now != before:
            before = now
            text = summary(state) if problem is None else f"no answer: {problem.what}"
            yield f"{clock(state['now'] if problem is None else time.time())} {state['pipeline']}: {text}"


# -- showing it ------------------------------------------------------------------------------------


def blocks(state: Status, where: str | None = None) -> list[Block]:
    """Lay out the screen in the order of the page: is it well, what is behind, the last error and change, all else.

    Where a next command names FILE, the file that was given is put there.
    """
    shown = [Block(lines=_health(state, where), style=_COLOURS.get(_state(state), ""))]
    shown.append(Block(lines=[*_behind(state), *_error(state, where), *_change(state), *_figures(state)]))
    lag = state["lag"]
    if lag is not None and lag["partitions"]:
        worst = sorted(lag["partitions"], key=lambda each: -each["lag"])[:_PARTITIONS]
        rows = [(f"{each['topic']}-{each['partition']}", each["position"], each["end"], each["lag"]) for each in worst]
        more = lag["count"] - len(worst)
        shown.append(Block(columns=("source partition", "read to", "end", "lag"), rows=rows))
        if more:
            shown[-1] = Block((f"and {more} more source partitions with less lag:",), shown[-1].columns, rows)
    if state["gateways"]:
        gateways = [(each["name"], each["address"], spans(each["sinks"])) for each in state["gateways"]]
        shown.append(Block(columns=("gateway", "metrics", "sink partitions"), rows=gateways))
    if state["batches"]:
        last = [
            (
                each["batch"],
                clock(each["at"]),
                each["in"],
                each["out"],
                each["rejected"],
                each["seconds"],
                each["lag"],
            )
            for each in state["batches"][-_BATCHES:]
        ]
        shown.append(Block(columns=("batch", "finished", "in", "out", "rejected", "seconds", "lag"), rows=last))
    if state.get("log"):
        lines = [f"{clock(each['at'])} {each['text']}" for each in state["log"][-_LOG:]]
        shown.append(Block(lines=lines))
    elif state["warnings"]:
        shown.append(Block(lines=[f"warning: {each}" for each in state["warnings"]]))
    return shown


def _state(state: Status) -> str:
    """Return the state of its health; a driver of version 0.1 has only a phase."""
    return str(state["health"]["state"] if state.get("health") else state["phase"])


def summary(state: Status) -> str:
    """Return in one line how the pipeline is, since when, and why."""
    health = state.get("health")
    if not health:
        return f"{state['phase']} for {duration(state['now'] - state['since'])}"
    lasted = duration(state["now"] - health["since"])
    return f"{health['state'].upper()} since {clock(health['since'])}, for {lasted}: {health['why']}"


def _health(state: Status, where: str | None) -> list[str]:
    lines = [f"{state['pipeline']}: {summary(state)}"]
    health = state.get("health") or {}
    if health.get("until") is not None:
        lines.append(f"  caught up in {duration(health['until'])}, at {clock(state['now'] + health['until'])}")
    if health.get("next"):
        lines.append(f"  next: {_with_file(health['next'], where)}")
    if health.get("runbook") and state.get("runbooks"):  # without metrics.runbooks nobody knows where they are
        lines.append(f"  runbook: {state['runbooks'].rstrip('/')}/{health['runbook']}.md")
    return lines


def _with_file(text: str, where: str | None) -> str:
    return re.sub(r"\bFILE\b", lambda _: shlex.quote(where), text) if where and Path(where).is_file() else text


def _no_answer(problem: DriverUnreachable | None) -> list[Block]:
    if problem is None:
        return []
    return [Block(lines=[f"NO ANSWER: {problem.what}", "  what follows is the last that is known"], style="bold red")]


def _behind(state: Status) -> list[str]:
    lines, lag, batch, rates = [], state["lag"], state["batch"], state["rates"]
    if lag is not None:
        lines.append(f"lag: {lag['records']:,} records, the oldest {duration(lag['seconds'])} old")
    speed = state.get("speed") or {"arriving": rates["input"], "reading": rates["processed"]}
    lines.append(f"speed: {speed['arriving']:,.0f} records/s arrive, {speed['reading']:,.0f} records/s are read")
    if batch is not None:
        lines.append(
            f"last batch: {batch['number']}, {duration(state['now'] - batch['finished'])} ago, "
            f"{batch['sinks']} sink partitions" + (", and one in progress" if batch["busy"] else "")
        )
    return lines


def _error(state: Status, where: str | None) -> list[str]:
    error = state.get("error")
    if not error:
        return []
    lines = [
        f"last error: {clock(error['at'])}, run {error['run']}, {error['error']} {error['title']}: {error['what']}"
    ]
    lines += [f"  kept safe: {error['kept']}"] if error["kept"] else []
    lines += [f"  next: {_with_file(error['next'], where)}"] if error["next"] else []
    return [*lines, f"  more: tailrace explain {error['error']}"]


def _change(state: Status) -> list[str]:
    change = state.get("change")
    return [f"last change: {clock(change['at'])}, {change['text']}"] if change else []


def _figures(state: Status) -> list[str]:
    totals = state["totals"]
    lines = [
        (
            f"driver: {state['phase']} for {duration(state['now'] - state['since'])}, run {state['run']}, "
            f"tailrace {state['tailrace']}"
        ),
        (
            f"this run: {totals['batches']:,} batches, {totals['consumed']:,} consumed, "
            f"{totals['produced']:,} delivered, {totals['rejected']:,} rejected"
        ),
    ]
    if totals["reasons"]:
        lines.append("rejected: " + ", ".join(f"{number:,} {why}" for why, number in sorted(totals["reasons"].items())))
    broken = [each for each in totals.get("rules", ()) if each["broken"]]  # a driver of version 0.1 has none
    if broken:
        lines.append("broken rules: " + ", ".join(map(_rule, broken)))
    if state.get("planning"):
        planning = state["planning"]
        why = f": {', '.join(planning['reasons'])}" if planning["reasons"] else ""
        lines.append(f"plan: {planning['frame']}{why}")
    if state["executors"]:
        lines.append(f"executors: {state['executors']['present']} of {state['executors']['wanted']}")
    return lines


def _rule(each: Mapping[str, Any]) -> str:
    share = each["broken"] / max(1, each["checked"])
    return f"{each['rule']} ({each['severity']}) by {each['broken']:,} of {each['checked']:,}, {share:.2%}"


def spans(numbers: Sequence[int]) -> str:
    """Write sorted numbers with runs as spans: 0-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
