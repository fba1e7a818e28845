"""The history of a world's registers: the drivers' operations on the ledger and the markers, and their results.

The ledger is a register: the last plan. So is the marker of each sink partition. Both are fenced: who takes the
transactional id becomes the owner, and an older owner can write no more. A driver without Spark records each operation
before it begins and after it ends, in the form that Jepsen's checkers know: invoke, then ok or info. A driver that is
killed leaves an operation without an end. `linear`, a program in Go, checks the lines with Porcupine.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace import jars
from tailrace.gateway.producers import SinkProducer
from tailrace.progress.ledger import Ledger

HISTORY = "FAULTS_HISTORY"  # names the file
SOURCE = Path(__file__).parent / "linear"
_BUILD_LIMIT, _CHECK_LIMIT = 180.0, 300.0

Result = Callable[[Any], str]


class Recorder:
    """Appends the operations of one process to a file; a line is written at once, so none is torn by a kill."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._process = uuid.uuid4().hex[:8]
        self._numbers = itertools.count()

    def owner(self, thing: object) -> str:
        """Return the name of an owner: an object of this process."""
        return f"{self._process}-{id(thing)}"

    def _line(self, kind: str, value: str, **operation: Any) -> None:
        line = {**operation, "type": kind, "value": value, "time": time.monotonic_ns()}
        os.write(self._file, f"{json.dumps(line)}\n".encode())

    def record(self, client: str, key: str, op: str, act: Callable[[], Any], value: str, result: Result = str) -> Any:
        """Do it, and record what was asked and what came of it."""
        operation = {"client": client, "number": next(self._numbers), "key": key, "op": op}
        self._line("invoke", value, **operation)
        try:
            found = act()
        except BaseException:
            self._line("info", value, **operation)
            raise
        self._line("ok", result(found) if op == "read" else value, **operation)
        return found


def plan_value(plan: Any) -> str:
    """Return what tells a plan from others."""
    return "" if plan is None else f"{plan.batch}{' done' if plan.done else ''} {sum(plan.ends.values())}"


def record(file: Path) -> None:
    """Record every operation of this process from now on."""
    to = Recorder(file)
    take, latest, write, settle, fence = Ledger.take, Ledger.latest, Ledger.write, Ledger.settle, Ledger.fence
    give_up = Ledger.give_up
    sink_fence, marker, seal, commit = SinkProducer.fence, SinkProducer.marker, SinkProducer.seal, SinkProducer.commit

    def sink(one: SinkProducer) -> str:
        return f"sink {one._place.partition}"

    def _write(one: Ledger, plan: Any, positions: Any) -> None:
        to.record(to.owner(one), "ledger", "write", lambda: write(one, plan, positions), plan_value(plan))

    def _settle(one: Ledger, plan: Any, positions: Any) -> None:
        if plan is not None:
            value = plan_value(plan.finished())
            to.record(to.owner(one), "ledger", "write", lambda: settle(one, plan, positions), value)

    def _latest(one: Ledger, pipeline: str | None = None) -> Any:
        if pipeline is not None:  # it asks for the register of another
            return latest(one, pipeline)
        return to.record(to.owner(one), "ledger", "read", lambda: latest(one), "", plan_value)

    def _fence(one: Ledger, sinks: int) -> None:
        act = functools.partial(fence, one, sinks)
        for number in range(sinks):  # one call fences all of them, at some time between its begin and its end
            act = functools.partial(to.record, to.owner(one), f"sink {number}", "fence", act, "")
        act()

    def _give_up(one: Ledger, parts: Any, marker: Any, known: Any) -> None:
        act = functools.partial(give_up, one, parts, marker, known)
        for number in parts:  # one call fences and then writes each of them
            given = to.owner(one), f"sink {number}"
            act = functools.partial(to.record, *given, "write", act, str(marker.next))
            act = functools.partial(to.record, *given, "fence", act, "")
        act()

    def _seal(one: SinkProducer, sealed: Any) -> None:
        sealing[to.owner(one)] = str(sealed.next)
        seal(one, sealed)

    def _commit(one: SinkProducer, batch: Any) -> Any:
        owner = to.owner(one)
        return to.record(owner, sink(one), "write", lambda: commit(one, batch), sealing[owner])

    def _marker(one: SinkProducer) -> Any:
        def shown(found: Any) -> str:
            return "" if found is None else str(found.next)

        return to.record(to.owner(one), sink(one), "read", lambda: marker(one), "", shown)

    sealing: dict[str, str] = {}
    changed: Mapping[type, Mapping[str, Any]] = {
        Ledger: {
            "take": lambda one: to.record(to.owner(one), "ledger", "fence", lambda: take(one), ""),
            "latest": _latest,
            "write": _write,
            "settle": _settle,
            "fence": _fence,
            "give_up": _give_up,
        },
        SinkProducer: {
            "fence": lambda one: to.record(to.owner(one), sink(one), "fence", lambda: sink_fence(one), ""),
            "marker": _marker,
            "seal": _seal,
            "commit": _commit,
        },
    }
    for kind, methods in changed.items():
        for name, method in methods.items():
            setattr(kind, name, method)


@dataclass(frozen=True)
class Checked:
    """What the checker found in a history."""

    operations: int = 0
    broken: tuple[str, ...] = ()  # registers whose history no order of the operations explains


@functools.cache
def checker() -> Path | None:
    """Return the checker's program, built once for each of its texts; None where it cannot be built."""
    go = shutil.which("go")
    if go is None:
        return None
    text = "".join(each.read_text() for each in sorted(SOURCE.iterdir()) if each.is_file())
    name = uuid.uuid5(uuid.NAMESPACE_OID, text).hex[:12]
    program = jars.folder().parent / f"linear-{name}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = program.with_suffix(f".{os.getpid()}")
        command = [go, "build", "-o", str(draft), "."]
        try:
            subprocess.run(command, cwd=SOURCE, check=True, timeout=_BUILD_LIMIT, capture_output=True)
        except subprocess.SubprocessError:  # an old Go, or no way to Porcupine's module
            return None
        draft.replace(program)
    return program


def check(program: Path, file: Path) -> Checked:
    """Check a history; a world whose drivers recorded nothing has an empty one."""
    lines = file.read_bytes() if file.exists() else b""
    # A driver that was killed in the middle of a write may leave a part of a line.
    whole = b"".join(line for line in lines.splitlines(keepends=True) if line.endswith(b"}\n"))
    done = subprocess.run([str(program)], input=whole, capture_output=True, check=True, timeout=_CHECK_LIMIT)
    found = json.loads(done.stdout)
    return Checked(found["operations"], tuple(found["broken"]))
