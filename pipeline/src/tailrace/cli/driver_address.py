"""Find a pipeline's driver: on this machine, or where Kafka says that it leads.

The members of the group of drivers have the address that the brokers see, and no port: the driver's own is the
configured one, or one of those after it.
"""

from __future__ import annotations

import datetime
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka import KafkaException

from tailrace.config import Metrics, Pipeline
from tailrace.config.file import load
from tailrace.errors import DriverUnreachable, KafkaError
from tailrace.kafka.clients import within
from tailrace.kafka.cluster import Cluster
from tailrace.progress import last_error
from tailrace.progress.lease import Holder, Phase, running
from tailrace.status.health import duration

_PATIENCE = 5.0  # seconds for one answer
_NEAR: Final = 16  # ports to try, beginning with the configured one
_ELSEWHERE = 2.0  # seconds for one answer of another machine, which may drop what it does not expect
_KAFKA = 15.0  # seconds for the brokers to say who leads
_EVERYWHERE = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True)
class Found:
    """A driver that answers."""

    url: str
    state: Mapping[str, Any]

    @property
    def leads(self) -> bool:
        """Whether it is the one that delivers."""
        return bool(self.state.get("phase") == "leading")


def found(where: str | None) -> Found:
    """Return the driver of a file, at an address, or on this machine; raise DriverUnreachable if none answers."""
    if where is None:
        chosen = Metrics()
        near = _search(_here(chosen), chosen.port)
        return near or _at(f"http://{_here(chosen)}:{chosen.port}/")
    if "://" in where:
        return _at(where.rstrip("/") + "/")
    if not Path(where).exists() and _is_address(where):
        return _at(f"http://{where}/")
    return _of(load(Path(where)).pipeline)


def again(driver: Found, where: str | None) -> Found:
    """Ask a driver again; if it has ended or does not lead any more, look for the one that does."""
    try:
        now = _at(driver.url)
    except DriverUnreachable:
        return found(where)
    if now.leads or now.state.get("phase") == "starting":
        return now
    try:
        return found(where)
    except DriverUnreachable:
        return now


def _of(pipeline: Pipeline) -> Found:
    chosen, name = pipeline.metrics, pipeline.pipeline
    if not chosen.enabled:
        raise DriverUnreachable(
            f"the driver of pipeline {name!r} serves no status: metrics.enabled is false",
            kept="nothing was changed",
            then="tailrace offsets show FILE; set metrics.enabled: true to see more from the next start on",
        )
    near = _search(_here(chosen), chosen.port, name=name)
    if near is not None and near.leads:
        return near
    try:
        holders = within(_KAFKA, "asking who leads", lambda: running(Cluster(pipeline.kafka), name))
    except (KafkaError, KafkaException) as error:
        if near is not None:
            return near
        said = error.what if isinstance(error, KafkaError) else error.args[0].str()
        raise DriverUnreachable(
            f"no driver of pipeline {name!r} answers on this machine, and the brokers do not say where one is: {said}",
            kept="nothing was changed",
            then="tailrace doctor FILE",
        ) from error
    leader = next((each for each in holders if each.phase is Phase.LEADING), None)
    if leader is not None and leader.host not in {"", "127.0.0.1", "::1"}:
        there = _search(leader.host, chosen.port, run=leader.run)
        if there is not None:
            return there
    if near is not None:
        return near
    raise _silent(pipeline, leader) if leader is not None else _nobody(pipeline)


def _silent(pipeline: Pipeline, leader: Holder) -> DriverUnreachable:
    port = pipeline.metrics.port
    if leader.host in _own_addresses():
        ports = f"port {port}, nor at the {_NEAR - 1} after it" if port else "any port: metrics.port is 0"
        return DriverUnreachable(
            f"run {leader.run}, which has led pipeline {pipeline.pipeline!r} on this machine since "
            f"{clock(leader.since)}, does not answer at {ports}. If it was killed, Kafka lists it for up to "
            f"{duration(pipeline.ledger.lease)} more",
            kept="what it has delivered, and its place in the input",
            then="tailrace run FILE, if its process is gone; a start takes over at once",
        )
    return DriverUnreachable(
        f"run {leader.run} leads pipeline {pipeline.pipeline!r} on {leader.host} since {clock(leader.since)}, and does "
        f"not answer here: metrics.host is {pipeline.metrics.host}, metrics.port {port or 'any free one'}",
        kept="nothing was changed",
        then="run this command on that machine; or, on Kubernetes, "
        f"kubectl port-forward deployment/NAME {port or 9760} and tailrace status http://127.0.0.1:{port or 9760}/",
    )


def _own_addresses() -> set[str]:
    return {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}


def _nobody(pipeline: Pipeline) -> DriverUnreachable:
    what, then = f"no driver of pipeline {pipeline.pipeline!r} runs", "tailrace run FILE"
    try:
        last = last_error.read(pipeline)
    except KafkaError:
        last = None
    if last is not None:
        what += f"; run {last['run']} ended at {clock(last['at'])} with {last['error']} {last['title']}: {last['what']}"
        then = last["next"] or then
    return DriverUnreachable(what, kept="nothing was changed", then=then)


def clock(seconds: float) -> str:
    """Format a moment as local time, with the date if it is another day's."""
    moment = datetime.datetime.fromtimestamp(seconds).astimezone()
    today = moment.date() == datetime.datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _here(chosen: Metrics) -> str:
    return "127.0.0.1" if chosen.host in _EVERYWHERE else chosen.host


def _search(host: str, first: int, *, name: str | None = None, run: str | None = None) -> Found | None:
    """Return the driver of a pipeline, or of a run, at one of the ports from the first on: one that leads, if any."""
    seen: Found | None = None
    patience = _ELSEWHERE if run is not None else _PATIENCE
    written = f"[{host}]" if ":" in host else host
    for number in range(first, min(first + _NEAR, 65536)) if first else ():
        try:
            answer = _at(f"http://{written}:{number}/", patience)
        except DriverUnreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                break  # the machine drops what arrives: the other ports would take as long
            continue
        if name not in {None, answer.state.get("pipeline")} or run not in {None, answer.state.get("run")}:
            continue
        if answer.leads or run is not None:
            return answer
        seen = seen or answer
    return seen


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


def _at(url: str, patience: float = _PATIENCE) -> Found:
    # Skip the environment's proxies: a driver is near.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}status", timeout=patience) as answer:
            state = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        cause = why if isinstance(why, BaseException) else error
        raise DriverUnreachable(
            f"no driver answers at {url} ({why})",
            kept="nothing was changed",
            then="tailrace status FILE, which asks Kafka where the driver leads",
        ) from cause
    if not isinstance(state, dict) or "pipeline" not in state:
        raise DriverUnreachable(
            f"the server at {url} is not a Tailrace driver",
            kept="nothing was changed",
            then="tailrace status URL, with the address that the driver logged when it started",
        )
    return Found(url, state)
