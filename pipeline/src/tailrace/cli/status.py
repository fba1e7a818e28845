"""`tailrace status`: the driver's status page in the terminal."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tailrace.cli.terminal import Block, Output, OutputOption, Screen, emit, note, show
from tailrace.config import Metrics
from tailrace.config.file import load
from tailrace.errors import DriverUnreachable

EVERY: Final = 2.0
_PATIENCE = 5.0  # seconds for one answer
_NEAR = 16  # ports to try, beginning with the configured one
_PARTITIONS, _BATCHES = 12, 10  # maximum lines of each

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
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a running pipeline is doing: lag, rates, the last batches, its gateways.

    On a terminal the display is live until Ctrl-C; elsewhere, and as JSON, it is written once.
    """
    url = found(where)
    state = ask(url)
    if output is Output.JSON:
        emit(state)
        return
    if once or not sys.stdout.isatty():
        show(blocks(state))
        note(f"next: {url} in a browser")
        return
    try:
        with Screen() as screen:
            while True:
                screen.show(blocks(state))
                time.sleep(EVERY)
                state = ask(url)
    except KeyboardInterrupt:
        return


# -- finding the driver ----------------------------------------------------------------------------


def found(where: str | None) -> str:
    """Return the driver's address: given, or searched for on the ports from the configured one on."""
    if where is not None and "://" in where:
        return where.rstrip("/") + "/"
    if where is not None and not Path(where).exists() and _is_address(where):
        return f"http://{where}/"
    if where is None:
        chosen, name = Metrics(), None
    else:
        pipeline = load(Path(where)).pipeline
        chosen, name = pipeline.metrics, pipeline.pipeline
    host = "127.0.0.1" if chosen.host in {"0.0.0.0", "::"} else chosen.host
    first = f"http://{host}:{chosen.port}/"
    answers = []
    for number in range(chosen.port, min(chosen.port + _NEAR, 65536)):
        try:
            state = ask(f"http://{host}:{number}/")
        except DriverUnreachable:
            continue
        if name in {None, state.get("pipeline")}:
            answers.append((state.get("phase") != "leading", number))
            if state.get("phase") == "leading":
                break
    return f"http://{host}:{min(answers)[1]}/" if answers else first


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


def ask(url: str) -> dict[str, Any]:
    """Fetch the driver's status; raise DriverUnreachable if none answers."""
    # Skip the environment's proxies: a driver is near.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}status", timeout=_PATIENCE) as answer:
            state = json.load(answer)
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DriverUnreachable(
            f"no driver answers at {url} ({why})",
            kept="nothing was changed",
            then="find the address in the driver's first lines (`status page: …`), then: tailrace status URL",
        ) from error
    if not isinstance(state, dict) or "pipeline" not in state:
        raise DriverUnreachable(
            f"the server at {url} is not a Tailrace driver",
            kept="nothing was changed",
            then="tailrace status URL, with the address that the driver logged when it started",
        )
    return state


# -- showing it ------------------------------------------------------------------------------------


def blocks(state: Status) -> list[Block]:
    """Lay out the screen: the pipeline in a few lines, its source partitions, gateways and last batches."""
    shown = [Block(lines=_heading(state))]
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
            (each["batch"], each["in"], each["out"], each["rejected"], each["seconds"], each["lag"])
            for each in state["batches"][-_BATCHES:]
        ]
        shown.append(Block(columns=("batch", "in", "out", "rejected", "seconds", "lag"), rows=last))
    if state["warnings"]:
        shown.append(Block(lines=[f"warning: {each}" for each in state["warnings"]]))
    return shown


def _heading(state: Status) -> list[str]:
    totals, lag, batch = state["totals"], state["lag"], state["batch"]
    since = duration(state["now"] - state["since"])
    lines = [f"{state['pipeline']}: {state['phase']} for {since}, run {state['run']}, tailrace {state['tailrace']}"]
    if state.get("away"):
        lines.append(f"THE BROKERS DO NOT ANSWER: {state['away']['what']}; delivered records are safe")
    if state["stalled"]:
        lines.append(f"STALLED: {state['stalled']}")
    if lag is not None:
        lines.append(f"lag: {lag['records']:,} records, the oldest {duration(lag['seconds'])} old")
    if batch is not None:
        lines.append(
            f"last batch: {batch['number']}, {duration(state['now'] - batch['finished'])} ago, "
            f"{batch['sinks']} sink partitions" + (", and one in progress" if batch["busy"] else "")
        )
    rates = state["rates"]
    lines.append(f"rates: {rates['input']:,.0f} records/s arriving, {rates['processed']:,.0f} records/s processing")
    lines.append(
        f"this run: {totals['batches']:,} batches, {totals['consumed']:,} consumed, {totals['produced']:,} delivered, "
        f"{totals['rejected']:,} rejected"
    )
    if totals["reasons"]:
        lines.append("rejected: " + ", ".join(f"{number:,} {why}" for why, number in sorted(totals["reasons"].items())))
    if state.get("planning"):
        planning = state["planning"]
        why = f": {', '.join(planning['reasons'])}" if planning["reasons"] else ""
        lines.append(f"plan: {planning['frame']}{why}")
    if state["executors"]:
        lines.append(f"executors: {state['executors']['present']} of {state['executors']['wanted']}")
    return lines


def spans(numbers: Sequence[int]) -> str:
    """Write sorted numbers with runs as spans: 0-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def duration(seconds: float) -> str:
    """Format a duration for people."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.1f} s"
