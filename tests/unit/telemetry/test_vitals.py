"""Garbage collections: those of a real JVM, observed from outside, and those of this process."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tailrace.telemetry import metrics
from tailrace.telemetry.garbage import Collection, Garbage, Vitals
from tailrace.telemetry.jvm import Jvm
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.vitals import Watch
from tailrace.testing import wait_until


def pid_of(spark: SparkSession) -> int:
    """Return the pid of the session's JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def test_a_collection_of_a_jvm_is_seen_from_outside(spark: SparkSession) -> None:
    """It is observed once, with its length and the heap that is left."""
    jvm = Jvm.of(pid_of(spark))
    assert jvm is not None
    jvm.pauses()
    spark._jvm.System.gc()  # type: ignore[union-attr]
    found = jvm.pauses()
    assert sum(each.count for each in found) >= 1
    assert all(each.seconds >= 0 for each in found)
    assert sum(each.seconds * each.count for each in found) > 0
    assert {each.collector for each in found} <= set(jvm.collectors.values())
    assert 0 < jvm.heap().used <= jvm.heap().most
    jvm.close()


@pytest.mark.parametrize("collector", ["G1", "Serial", "Parallel"])
def test_limit_of_a_heap_is_what_the_jvm_was_given(collector: str) -> None:
    """With G1 both generations say that they may have all of it, and a full heap seemed to be half full."""
    options = [f"-XX:+Use{collector}GC", "-Xmx64m", "-Djava.rmi.server.hostname=127.0.0.1"]
    command = ["java", *options, "-m", "java.rmi/sun.rmi.registry.RegistryImpl", "0"]  # it waits
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            jvm = wait_until(lambda: Jvm.of(process.pid), "the counters of a JVM", 60)
            assert jvm is not None
            found = wait_until(lambda: jvm.heap() if jvm.heap().most else None, "the heap of a JVM", 60)
            jvm.close()
        finally:
            process.kill()
    assert found is not None
    assert 0.9 * 2**26 < found.most < 1.1 * 2**26


def test_a_process_that_is_not_a_jvm_has_no_counters(tmp_path: Path) -> None:
    """A JVM whose file is incomplete has none either."""
    assert Jvm.of(1, tmp_path) is None
    (tmp_path / "hsperfdata_x").mkdir()
    (tmp_path / "hsperfdata_x" / "1").write_bytes(b"")
    assert Jvm.of(1, tmp_path) is None
    (tmp_path / "hsperfdata_x" / "1").write_bytes(bytes(64))
    assert Jvm.of(1, tmp_path) is None


def test_collections_of_python_are_reported_once() -> None:
    """Each is reported with its generation and what it freed."""
    garbage = Garbage()
    garbage.listen()
    garbage.listen()
    try:
        knot: list[object] = []
        knot.append(knot)
        del knot
        gc.collect(2)
        found = garbage.taken()
        assert sum(each.generation == 2 for each in found) == 1
        assert sum(each.collected for each in found) >= 1
        assert not [each for each in garbage.taken() if each.generation == 2]
    finally:
        garbage.forget()
    gc.collect()
    assert garbage.taken() == ()


def test_a_watch_reports_the_pauses_of_the_jvm_and_the_workers(spark: SparkSession) -> None:
    """Pauses are histograms; memory is a gauge that is read at each scrape."""
    measures = Measures(metrics.BOTH)
    watch = Watch(measures, "p", "gateway", "executor-jvm", pid_of(spark))
    watch.start()
    try:
        watch.heard(Vitals(1 << 22, (Collection(2, 0.02, 5, 0),)))
        collectors = wait_until(
            lambda: [labels[2] for labels in measures.spreads(metrics.JVM_PAUSE)], "the JVM to be found", 30
        )
        before = sum(each.count for each in measures.spreads(metrics.JVM_PAUSE).values())
        spark._jvm.System.gc()  # type: ignore[union-attr]
        wait_until(
            lambda: sum(each.count for each in measures.spreads(metrics.JVM_PAUSE).values()) > before,
            "the collection to be counted",
            30,
        )
    finally:
        watch.stop()
    measures.text()
    assert len(collectors) >= 1
    assert measures.value(metrics.JVM_AFTER, "p", "executor-jvm") > 0
    assert measures.value(metrics.RSS, "p", "gateway") > 0
    assert measures.value(metrics.RSS, "p", "executor-jvm") > 0
    assert measures.value(metrics.PROCESSES, "p", "workers") == 0  # that worker has ended
    pauses = measures.spreads(metrics.PYTHON_PAUSE)["p", "workers", "2"]
    assert (pauses.count, pauses.total) == (1, 0.02)
    assert measures.value(metrics.PYTHON_COLLECTED, "p", "workers", 2) == 5
