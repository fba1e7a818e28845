"""Process vitals: memory, CPU time, and garbage collections of the JVM and of Python.

One thread reads the JVM's counters ten times a second, which takes a few microseconds; memory and CPU time are read
at each scrape.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterable

import psutil

from tailrace.telemetry import metrics
from tailrace.telemetry.garbage import OWN, Collection, Vitals
from tailrace.telemetry.jvm import Jvm
from tailrace.telemetry.measure import Measures

log = logging.getLogger(__name__)

LOOK_EVERY = 0.1
_WITHOUT = 600  # failed looks for a JVM's counters before giving up
_WORKERS = 256  # maximum number of Python workers tracked


class Watch:
    """Watches this process, a JVM, and the workers that have reported."""

    def __init__(self, measures: Measures, pipeline: str, own: str, jvm: str, pid: int | None) -> None:
        self._measures = measures
        self._pipeline = pipeline
        self._own = own
        self._name = jvm
        self._pid = pid
        self._jvm: Jvm | None = None
        self._after = 0
        self._tried = 0
        self._stop = threading.Event()
        self._workers: dict[int, None] = {}
        self._lock = threading.Lock()
        self._ticks: list[Callable[[], None]] = []
        measures.before(self.look)

    def each(self, tick: Callable[[], None]) -> None:
        """Call `tick` with each look."""
        self._ticks.append(tick)

    def start(self) -> None:
        """Start watching."""
        OWN.listen()
        for process in {self._own, "workers"} if self._own == "gateway" else {self._own}:
            for generation in range(len(gc.get_threshold())):
                labels = (self._pipeline, process, generation)
                for metric in (metrics.PYTHON_PAUSE, metrics.PYTHON_COLLECTED, metrics.PYTHON_UNCOLLECTABLE):
                    self._measures.begin(metric, *labels)
        threading.Thread(target=self._run, name="tailrace-vitals", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        OWN.forget()

    def jvm(self, pid: int) -> None:
        """Set the JVM to watch, if it was not known at the start."""
        self._pid, self._tried = pid, 0

    def heard(self, vitals: Vitals) -> None:
        """Record what a worker reports about itself."""
        with self._lock:
            if len(self._workers) < _WORKERS:
                self._workers[vitals.pid] = None
        self._python("workers", vitals.collections)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY):
            try:
                self._pauses()
                for tick in self._ticks:
                    tick()
            except Exception:
                log.exception("watching the process vitals failed; it is now off")
                return

    def _pauses(self) -> None:
        self._python(self._own, OWN.taken())
        if self._jvm is None and self._pid is not None and self._tried < _WITHOUT:
            self._tried += 1
            self._jvm = Jvm.of(self._pid)
            if self._jvm is not None:
                for name in self._jvm.collectors.values():
                    self._measures.begin(metrics.JVM_PAUSE, self._pipeline, self._name, name)
            if self._tried == _WITHOUT:
                log.warning(
                    "JVM %s exposes no counters (-XX:-UsePerfData?): its garbage collections are unknown", self._pid
                )
        if self._jvm is None:
            return
        found = self._jvm.pauses()
        for each in found:
            labels = (self._pipeline, self._name, each.collector)
            self._measures.observe(metrics.JVM_PAUSE, *labels, value=each.seconds, times=each.count)
        if found:
            self._after = self._jvm.heap().used

    def _python(self, process: str, collections: Iterable[Collection]) -> None:
        for each in collections:
            labels = (self._pipeline, process, each.generation)
            self._measures.observe(metrics.PYTHON_PAUSE, *labels, value=each.seconds)
            self._measures.add(metrics.PYTHON_COLLECTED, *labels, by=each.collected)
            self._measures.add(metrics.PYTHON_UNCOLLECTABLE, *labels, by=each.uncollectable)

    def look(self) -> None:
        """Measure memory and CPU time now."""
        self._process(self._own, psutil.Process())
        if self._pid is not None and psutil.pid_exists(self._pid):
            self._process(self._name, psutil.Process(self._pid))
        if self._jvm is not None:
            heap, labels = self._jvm.heap(), (self._pipeline, self._name)
            self._measures.set(metrics.JVM_HEAP, *labels, value=heap.used)
            self._measures.set(metrics.JVM_HEAP_MAX, *labels, value=heap.most)
            if self._after:
                self._measures.set(metrics.JVM_AFTER, *labels, value=self._after)
        if self._own == "gateway":
            sizes = [size for size in map(_rss, self._living()) if size]
            self._measures.set(metrics.RSS, self._pipeline, "workers", value=sum(sizes))
            self._measures.set(metrics.PROCESSES, self._pipeline, "workers", value=len(sizes))

    def _process(self, name: str, process: psutil.Process) -> None:
        try:
            spent = process.cpu_times()
            self._measures.set(metrics.RSS, self._pipeline, name, value=process.memory_info().rss)
            self._measures.total(metrics.CPU, self._pipeline, name, value=spent.user + spent.system)
            self._measures.set(metrics.PROCESSES, self._pipeline, name, value=1)
        except psutil.Error:
            self._measures.set(metrics.PROCESSES, self._pipeline, name, value=0)

    def _living(self) -> list[int]:
        with self._lock:
            for pid in [pid for pid in self._workers if not psutil.pid_exists(pid)]:
                del self._workers[pid]
            return list(self._workers)


def _rss(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
