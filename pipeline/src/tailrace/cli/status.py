"""`tailrace status`: what the driver's status page says, in the terminal."""

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
_NEAR = 16  # ports after that of the configuration in which a driver is looked for
_PARTITIONS, _BATCHES = 12, 10  # as many lines of each

Told = Mapping[str, Any]


def status(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE or URL]",
            help="The pipeline's configuration, or its driver's address; without it, the usual port on this machine.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, also on a terminal.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what a running pipeline is doing: lag, rates, the last batches, its gateways.

    On a terminal the picture is live until Ctrl-C; elsewhere, and as JSON, it is written once.
    """
    url = found(where)
    told = ask(url)
    if output is Output.JSON:
        emit(told)
        return
    if once or not sys.stdout.isatty():
        show(blocks(told))
        note(f"next: {url} in a browser")
        return
    try:
        with Screen() as screen:
            while True:
                screen.show(blocks(told))
                time.sleep(EVERY)
                told = ask(url)
    except KeyboardInterrupt:
        return


# -- finding the driver ----------------------------------------------------------------------------


def found(where: str | None) -> str:
    """The address of the driver that is meant."""
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
            told = ask(f"http://{host}:{number}/")
        except DriverUnreachable:
            continue
        if name in {None, told.get("pipeline")}:
            answers.append((told.get("phase") != "leading", number))
            if told.get("phase") == "leading":
                break
    return f"http://{host}:{min(answers)[1]}/" if answers else first


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


def ask(url: str) -> dict[str, Any]:
    """What the driver there says."""
    # Without the proxies of the environment: a driver is near.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}status", timeout=_PATIENCE) as answer:
            told = json.load(answer)
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise DriverUnreachable(
            f"no driver answers at {url} ({why})",
            kept="nothing was changed",
            then="look at what the driver said when it started (`status page: …`), then: tailrace status URL",
        ) from error
    if not isinstance(told, dict) or "pipeline" not in told:
        raise DriverUnreachable(
            f"what answers at {url} is no driver of Tailrace",
            kept="nothing was changed",
            then="tailrace status URL, with the address that the driver said when it started",
        )
    return told


# -- showing it ------------------------------------------------------------------------------------


def blocks(told: Told) -> list[Block]:
    """The picture: the pipeline in a few lines, its source partitions, its gateways, its last batches."""
    shown = [Block(lines=_heading(told))]
    lag = told["lag"]
    if lag is not None and lag["partitions"]:
        worst = sorted(lag["partitions"], key=lambda each: -each["lag"])[:_PARTITIONS]
        rows = [(f"{each['topic']}-{each['partition']}", each["position"], each["end"], each["lag"]) for each in worst]
        rest = lag["count"] - len(worst)
        shown.append(Block(columns=("source partition", "read to", "end", "lag"), rows=rows))
        if rest:
            shown[-1] = Block((f"and {rest} more source partitions with less lag:",), shown[-1].columns, rows)
    if told["gateways"]:
        gateways = [(each["name"], each["address"], spans(each["sinks"])) for each in told["gateways"]]
        shown.append(Block(columns=("gateway", "metrics", "sink partitions"), rows=gateways))
    if told["batches"]:
        last = [
            (each["batch"], each["in"], each["out"], each["rejected"], each["seconds"], each["lag"])
            for each in told["batches"][-_BATCHES:]
        ]
        shown.append(Block(columns=("batch", "in", "out", "rejected", "seconds", "lag"), rows=last))
    if told["warnings"]:
        shown.append(Block(lines=[f"warning: {each}" for each in told["warnings"]]))
    return shown


def _heading(told: Told) -> list[str]:
    totals, lag, batch = told["totals"], told["lag"], told["batch"]
    since = duration(told["now"] - told["since"])
    lines = [f"{told['pipeline']}: {told['phase']} for {since}, run {told['run']}, tailrace {told['tailrace']}"]
    if told["stalled"]:
        lines.append(f"STALLED: {told['stalled']}")
    if lag is not None:
        lines.append(f"lag: {lag['records']:,} records, the oldest {duration(lag['seconds'])} old")
    if batch is not None:
        lines.append(
            f"last batch: {batch['number']}, {duration(told['now'] - batch['finished'])} ago, "
            f"{batch['sinks']} sink partitions" + (", and one is under way" if batch["busy"] else "")
        )
    rates = told["rates"]
    lines.append(f"rates: {rates['input']:,.0f} records/s arriving, {rates['processed']:,.0f} records/s processing")
    lines.append(
        f"this run: {totals['batches']:,} batches, {totals['consumed']:,} consumed, {totals['produced']:,} delivered, "
        f"{totals['rejected']:,} rejected"
    )
    if totals["reasons"]:
        lines.append("rejected: " + ", ".join(f"{number:,} {why}" for why, number in sorted(totals["reasons"].items())))
    if told.get("planning"):
        planning = told["planning"]
        why = f": {', '.join(planning['reasons'])}" if planning["reasons"] else ""
        lines.append(f"plan: {planning['frame']}{why}")
    if told["executors"]:
        lines.append(f"executors: {told['executors']['present']} of {told['executors']['wanted']}")
    return lines


def spans(numbers: Sequence[int]) -> str:
    """Numbers in their order, those that follow each other as a span: 0-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def duration(seconds: float) -> str:
    """A time as a person says it."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.1f} s"
