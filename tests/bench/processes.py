"""CPU and memory of a side by kind of process: driver, JVM, Python workers, gateway; the broker is counted separately.

A side's processes are found by a variable in their environment, which they inherit: a gateway outlives the process that
started it, so the process tree is not enough.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from tailrace.jars import java

MARK = "BENCH_SIDE"
DRIVER, JVM, WORKERS, GATEWAY, BROKER, OTHER = "driver", "jvm", "workers", "gateway", "broker", "other"
KINDS = {
    DRIVER: "driver's Python",
    JVM: "JVM",
    WORKERS: "Python workers",
    GATEWAY: "gateway",
    OTHER: "other",
    BROKER: "broker",
}
END_LIMIT = 20.0
HEAP_LIMIT = 60.0
_GATEWAY_MODULE = "tailrace.gateway.server"
_WORKER_MODULES = ("tailrace.gateway.daemon", "pyspark.daemon", "pyspark.worker")


def kind_of(command: Sequence[str], root: bool) -> str:
    """Tell the kind of a side's process from its command line; `root` is the process that was started."""
    if root:
        return DRIVER
    if _GATEWAY_MODULE in command:
        return GATEWAY
    if any(module in command for module in _WORKER_MODULES):
        return WORKERS
    if any("org.apache.spark" in part for part in command):
        return JVM
    return OTHER


def family(mark: str) -> list[psutil.Process]:
    """Find every process that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def jvms(mark: str, broker: int) -> dict[str, int]:
    """Find the process id of each kind that is a JVM: a side's and the broker's."""
    found = {BROKER: broker}
    for process in family(mark):
        with contextlib.suppress(psutil.Error):
            if kind_of(process.cmdline(), False) == JVM:
                found[JVM] = process.pid
    return found


def live_heap(pid: int) -> float:
    """Return the bytes of a JVM's objects that are in use, after a full collection."""
    command = [str(java().resolve().with_name("jcmd")), str(pid), "GC.class_histogram"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HEAP_LIMIT)
    return live_of(said.stdout)


def live_of(histogram: str) -> float:
    """Return the bytes in the last line of a class histogram: `Total`, objects, bytes."""
    name, _, size = histogram.splitlines()[-1].split()
    if name != "Total":
        raise ValueError(f"the class histogram ends with {name}")
    return float(size)


def end(mark: str) -> None:
    """Kill the remaining processes of a side."""
    left = family(mark)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, END_LIMIT)


@dataclass(frozen=True)
class Snapshot:
    """The CPU and memory used up to a moment."""

    at: float
    cpu: Mapping[str, float]  # kind → seconds, user and system
    memory: Mapping[str, float]  # kind → bytes of RSS
    busy: float  # seconds of CPU that the machine has used
    own: float  # seconds of CPU of the benchmark itself: load, observer


@dataclass(frozen=True)
class Used:
    """The CPU used between two snapshots."""

    seconds: float
    cpu: Mapping[str, float]
    others: float  # cores that other programs used

    def per_record(self, records: float) -> dict[str, float]:
        """Return the CPU µs per record by kind."""
        return {kind: seconds / records * 1e6 for kind, seconds in self.cpu.items()}


def between(first: Snapshot, last: Snapshot) -> Used:
    """Subtract two snapshots; a process that ended meanwhile never makes a kind negative."""
    seconds = last.at - first.at
    cpu = {kind: max(0.0, last.cpu[kind] - first.cpu.get(kind, 0.0)) for kind in last.cpu}
    others = (last.busy - first.busy) - sum(cpu.values()) - (last.own - first.own)
    return Used(seconds, cpu, max(0.0, others) / seconds if seconds else 0.0)


def spark_cpu(profile: Mapping[str, float]) -> float:
    """Add up the kinds of Spark and the processes it started: all but the broker."""
    return sum(value for kind, value in profile.items() if kind != BROKER)


def snapshot(mark: str, root: int, broker: int) -> Snapshot:
    """Look at a side, the broker and the machine now."""
    cpu, memory = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    marked = family(mark)
    for process in marked:
        with contextlib.suppress(psutil.Error):
            kind = kind_of(process.cmdline(), process.pid == root)
            cpu[kind] += _spent(process)
            size = float(process.memory_info().rss)
            # Each kind but the workers is one process; a child between fork and exec repeats its parent's memory.
            memory[kind] = memory[kind] + size if kind == WORKERS else max(memory[kind], size)
    with contextlib.suppress(psutil.Error):
        cpu[BROKER], memory[BROKER] = _spent(psutil.Process(broker)), psutil.Process(broker).memory_info().rss
    own = psutil.Process()
    apart = {broker, *(each.pid for each in marked)}
    helpers = [each for each in own.children() if each.pid not in apart]
    busy = psutil.cpu_times()
    return Snapshot(
        time.monotonic(),
        cpu,
        memory,
        sum(busy) - busy.idle - getattr(busy, "iowait", 0.0),
        sum(_spent(each) for each in [own, *helpers]),
    )


def _spent(process: psutil.Process) -> float:
    """Return the seconds of CPU of a process and of its children that have ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
