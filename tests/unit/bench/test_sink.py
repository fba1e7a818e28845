"""The sink benchmark's pure parts: records, ratios, slopes, kinds of process, counting, and the pages."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from bench import sink_report, soak_report
from bench.counting import check, tally
from bench.draining import batch_seconds
from bench.figures import AIMS, Measured, curves, ratios, slope, spreads
from bench.machine import machine
from bench.processes import DRIVER, GATEWAY, JVM, KINDS, OTHER, WORKERS, Snapshot, between, kind_of, live_of, spark_cpu
from bench.sides import BenchFailed, Side
from bench.sink import closing, line
from bench.sink_report import Results
from bench.soak_report import MB, Soaked
from bench.workloads import (
    ARROW,
    BATCH,
    FAILING,
    FIELDS,
    FUNCTIONS,
    JSON,
    NATIVE,
    QUICK,
    RAW,
    SIZE,
    SPARK,
    TAILRACE,
    WORKLOADS,
    Workload,
    arrow_missing,
    json_record,
    native,
    order,
    pipeline,
    projected,
)
from tailrace.config import Pipeline

SVG = "{http://www.w3.org/2000/svg}"
PROFILE = {DRIVER: 0.1, JVM: 2.0, WORKERS: 0.5, GATEWAY: 0.4, "broker": 1.5}


def run(workload: str, variant: str, round_: int, curve: tuple[float, ...] = (), **values: float) -> Measured:
    """Return a run that measured these values."""
    return Measured(workload, variant, round_, values, dict(PROFILE), 0.02, list(curve))


def everything(rounds: int = 3) -> list[Measured]:
    """Return runs of every workload, in which Tailrace needs half of what the native side needs."""
    found = []
    for number, (variant, share) in itertools.product(
        range(1, rounds + 1), ((NATIVE, 1.0), (TAILRACE, 0.5), (ARROW, 0.25))
    ):
        curve = tuple(share * each for each in range(1, 100))
        found.append(run("raw", variant, number, rate=1000 / share, cpu=share))
        if variant == ARROW:
            continue
        found.append(run("json", variant, number, rate=500 / share, cpu=share))
        found.append(run("latency_1k", variant, number, curve, p50=300 * share, p99=700 * share, cpu=share))
        found.append(run("latency_20k", variant, number, curve, p50=400 * share, p99=900 * share, cpu=share))
        found.append(run("batch_64", variant, number, curve[:20], rate=1.0, seconds=share, cpu=share))
    return found


def results(found: list[Measured], **more: Any) -> Results:
    """Return the results of a benchmark."""
    return Results(QUICK, False, "1g", {"cores": "2"}, found, seconds={"raw": 60.0}, **more)


def cells(text: str) -> list[str]:
    """Split a line of a table into its cells."""
    return [cell.strip() for cell in text.strip("|").split("|")]


# -- the records and the sides --------------------------------------------------------------------


@pytest.mark.parametrize("workload", [RAW, JSON, BATCH], ids=lambda workload: workload.name)
@pytest.mark.parametrize("number", [0, 7, 999, 1_000_002, 5_999_999])
def test_each_record_has_the_size_and_keeps_its_number(workload: Workload, number: int) -> None:
    """The output carries the number too."""
    value = workload.record(number)
    assert len(value) == SIZE
    output = json.dumps(projected(value), separators=(",", ":")).encode() if workload is JSON else value
    assert workload.number(output) == number


def test_expected_outputs_match_the_accepted_records() -> None:
    """One JSON record in FAILING fails the condition; every raw record passes."""
    for records in (0, 1, FAILING - 1, FAILING, FAILING + 1, 3 * FAILING):
        assert JSON.outputs(records) == sum(JSON.accepts(number) for number in range(records))
        assert RAW.outputs(records) == records
    failing = [number for number in range(2 * FAILING) if json.loads(json_record(number))["amount"] < 0]
    assert failing == [number for number in range(2 * FAILING) if not JSON.accepts(number)]


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_both_sides_get_the_same_session_and_keep_their_defaults(workload: Workload) -> None:
    """The configuration loads and sets only names, formats, the function and the size of a batch."""
    configuration = pipeline(workload, TAILRACE, "bench", "localhost:9092", "in", "out")
    Pipeline.model_validate(configuration)
    other = native(workload, "localhost:9092", "in", "out", tuned=False)
    assert other["settings"] == configuration["spark"] == SPARK
    assert set(configuration) - {"batch"} == {"pipeline", "kafka", "source", "process", "sink", "spark"}
    assert configuration.get("batch", {}).get("max_records") == workload.per_batch
    assert other["reader"].get("maxOffsetsPerTrigger") == (str(workload.per_batch) if workload.per_batch else None)


def test_tuning_adds_settings_to_the_native_side() -> None:
    """The defaults stay as they are."""
    plain = native(RAW, "localhost:9092", "in", "out", tuned=False)
    tuned = native(RAW, "localhost:9092", "in", "out", tuned=True)
    assert tuned["reader"].items() > plain["reader"].items()
    assert tuned["settings"].items() > plain["settings"].items()


def test_arrow_is_skipped_with_a_reason_if_the_configuration_lacks_it() -> None:
    """If the key exists, the configuration loads."""
    configuration = pipeline(RAW, ARROW, "bench", "localhost:9092", "in", "out")
    if arrow_missing():
        assert "process.arrow" in arrow_missing()
    else:
        Pipeline.model_validate(configuration)
    assert configuration["process"] == {"arrow": "functions.py:copy"}


def test_arrow_function_keeps_the_value_alone() -> None:
    """It yields a batch for each batch."""
    functions: dict[str, Any] = {}
    exec(FUNCTIONS, functions)
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "kafka": [1, 2]})
    assert [each.to_pydict() for each in functions["copy"](iter([batch]))] == [{"value": [b"a", b"b"]}]


class Reported(Side):
    """A side that has ended, with what it reported."""

    def __init__(self, variant: str, *batches: tuple[float, int]) -> None:
        self.variant = variant
        self.events = [(at, {"event": "written", "in": count, "seconds": 0.5}) for at, count in batches]


def test_batch_times_leave_out_the_warm_up() -> None:
    """Tailrace's times run from one end to the next, the native side's are its own; a partial last batch is dropped."""
    size = BATCH.per_batch or 0
    batches = ((1.0, 100), (3.0, size), (4.0, size), (4.25, size), (4.5, size - 100))
    assert batch_seconds(Reported(TAILRACE, *batches), BATCH, 2) == [1.0, 0.25]
    assert batch_seconds(Reported(NATIVE, *batches), BATCH, 2) == [0.5, 0.5]
    with pytest.raises(BenchFailed, match="instead of 1280"):
        batch_seconds(Reported(TAILRACE, (1.0, size), (2.0, 7), (3.0, size)), BATCH, 1)
    with pytest.raises(BenchFailed, match="1 complete batches"):
        batch_seconds(Reported(TAILRACE, (1.0, size)), BATCH, 1)


def test_the_order_of_the_sides_alternates() -> None:
    """Every other round runs in reverse."""
    assert order(("a", "b", "c"), 1) == ("a", "b", "c")
    assert order(("a", "b", "c"), 2) == ("c", "b", "a")


# -- the figures ----------------------------------------------------------------------------------


def test_a_ratio_compares_runs_of_one_round() -> None:
    """A round in which a side is missing is left out."""
    found = [
        run("raw", NATIVE, 1, rate=100.0, cpu=2.0),
        run("raw", TAILRACE, 1, rate=110.0, cpu=3.0),
        run("raw", TAILRACE, 2, rate=90.0, cpu=3.0),
        run("raw", NATIVE, 2, rate=60.0, cpu=2.0),
        run("raw", NATIVE, 3, rate=60.0, cpu=2.0),
        run("raw", ARROW, 3, rate=90.0, cpu=1.0),
        run("json", TAILRACE, 1, rate=1.0, cpu=1.0),
    ]
    assert spreads(found) == {
        "throughput_raw": pytest.approx([1.1, 1.5]),
        "cpu_raw": [1.5, 1.5],
        "throughput_arrow": [1.5],
        "cpu_arrow": [0.5],
    }
    assert ratios(found)["throughput_raw"] == pytest.approx(1.3)


def test_an_aim_is_reached_at_its_bound() -> None:
    """Throughput is a lower bound, the others are upper bounds."""
    assert AIMS["throughput_raw"].reached(1.1)
    assert not AIMS["throughput_raw"].reached(1.09)
    assert AIMS["p50_1k"].reached(0.55)
    assert not AIMS["p50_1k"].reached(0.56)
    assert (str(AIMS["throughput_raw"]), str(AIMS["batch_64"])) == ("≥ 1.1", "≤ 0.5")


def test_curves_are_medians_point_by_point() -> None:
    """Each side has a curve of its own."""
    found = [run("batch_64", TAILRACE, number, curve) for number, curve in enumerate([(1, 5), (2, 6), (9, 1)])]
    assert curves(found, "batch_64") == {TAILRACE: [2, 5]}


def test_slope_and_error_match_a_worked_example() -> None:
    """Points on a line have no error."""
    exact = slope([(x, 3 + 2 * x) for x in range(10)])
    assert exact.slope == pytest.approx(2)
    assert exact.error == pytest.approx(0)
    # Computed by hand: the residuals of 0, 1, 0, 1 around 0.2 + 0.2 x are -0.2, 0.6, -0.6, 0.2.
    small = slope([(0, 0), (1, 1), (2, 0), (3, 1)])
    assert small.slope == pytest.approx(0.2)
    assert small.error == pytest.approx(math.sqrt(0.8 / 2 / 5))


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(1.0, 1.0), (2.0, 2.0)], [(1.0, 1.0)] * 3])
def test_too_few_points_have_no_slope(points: list[tuple[float, float]]) -> None:
    """The slope is NaN rather than zero."""
    assert math.isnan(slope(points).slope)
    assert math.isnan(slope(points).error)


# -- the processes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["java", "-cp", "jars/*", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"], JVM),
        (["python", "-m", "tailrace.gateway.server", "--folder", "f"], GATEWAY),
        (["python", "-m", "tailrace.gateway.daemon", "pyspark.worker"], WORKERS),
        (["python", "-m", "pyspark.daemon", "pyspark.worker"], WORKERS),
        (["sh", "-c", "true"], OTHER),
        ([], OTHER),
    ],
)
def test_kind_of_process_follows_from_its_command(command: list[str], kind: str) -> None:
    """The process that was started is the driver."""
    assert kind_of(command, root=False) == kind
    assert kind_of(command, root=True) == DRIVER


def test_cpu_between_two_snapshots_is_split_by_kind() -> None:
    """A kind that lost a process is never negative; unaccounted CPU belongs to other programs."""
    first = Snapshot(10.0, {JVM: 5.0, WORKERS: 2.0, "broker": 1.0}, {}, 100.0, 1.0)
    last = Snapshot(20.0, {JVM: 9.0, WORKERS: 1.0, GATEWAY: 1.0, "broker": 4.0}, {}, 115.0, 2.0)
    used = between(first, last)
    assert used.cpu == {JVM: 4.0, WORKERS: 0.0, GATEWAY: 1.0, "broker": 3.0}
    assert used.others == pytest.approx((15 - 8 - 1) / 10)
    assert spark_cpu(used.per_record(1_000_000)) == pytest.approx(5.0)


# -- the counting ---------------------------------------------------------------------------------


def test_tally_counts_missing_repeated_and_foreign_records() -> None:
    """Records are identified by their number."""
    expected = np.array([True, True, False, True, True])
    found = tally(np.array([0, 0, 0, 1, 2, 7, -1]), expected)
    assert (found.records, found.missing, found.repeated, found.foreign) == (7, 2, 2, 3)
    nothing = tally(np.array([], dtype=np.int64), expected)
    assert (nothing.records, nothing.missing) == (0, 4)


def test_a_wrong_output_fails_the_run() -> None:
    """A repeated record fails only the exactly-once side."""
    expected = np.ones(3, dtype=bool)
    check(tally(np.array([2, 1, 0]), expected), 3, TAILRACE, exactly=True)
    repeated = tally(np.array([0, 1, 2, 2]), expected)
    check(repeated, 3, NATIVE, exactly=False)
    with pytest.raises(BenchFailed, match="1 repeated"):
        check(repeated, 3, TAILRACE, exactly=True)
    with pytest.raises(BenchFailed, match="native wrote 2 records where 3 were expected: 1 are missing"):
        check(tally(np.array([0, 1]), expected), 3, NATIVE, exactly=False)
    with pytest.raises(BenchFailed, match="1 do not belong there"):
        check(tally(np.array([0, 1, 2, 3]), expected), 3, NATIVE, exactly=False)


# -- the pages ------------------------------------------------------------------------------------


def test_page_lists_each_aim_with_its_verdict(tmp_path: Path) -> None:
    """Each line has the median and the rounds; each plot exists and is well-formed."""
    sink_report.write(tmp_path, results(everything()))
    page = (tmp_path / "sink.md").read_text(encoding="utf-8")
    assert "{" not in page
    lines = {cells(each)[0].strip("`"): cells(each) for each in page.splitlines() if each.startswith("| `")}
    assert list(lines) == list(AIMS)
    assert lines["throughput_raw"][2:] == ["≥ 1.1", "2.00", "2.00, 2.00, 2.00", "**reached**"]
    assert lines["throughput_arrow"][2:] == ["≥ 1.3", "4.00", "4.00, 4.00, 4.00", "**reached**"]
    assert lines["cpu_arrow"][2:] == ["≤ 0.9", "0.25", "0.25, 0.25, 0.25", "**reached**"]
    assert lines["batch_64"][2:] == ["≤ 0.5", "0.50", "0.50, 0.50, 0.50", "**reached**"]
    named = re.findall(r"!\[.+\]\((.+)\)", page)
    assert len(named) == 6
    for name in named:
        drawn = ElementTree.fromstring((tmp_path / name).read_text(encoding="utf-8"))
        assert drawn.findall(f"{SVG}polyline"), name


def test_page_shows_missed_and_unmeasured_aims(tmp_path: Path) -> None:
    """A skipped aim has its reason."""
    found = [run("raw", NATIVE, 1, rate=2.0, cpu=1.0), run("raw", TAILRACE, 1, rate=1.0, cpu=1.0)]
    sink_report.write(tmp_path, results(found, skipped={"cpu_arrow": "there is no such key"}))
    page = (tmp_path / "sink.md").read_text(encoding="utf-8")
    assert "| 0.50 | 0.50 | not reached |" in page
    assert "| not measured: there is no such key |" in page
    assert "| not measured |" in page
    assert closing(results(found))[0].split() == ["throughput_raw", "≥", "1.1", "0.50", "(0.50)", "not", "reached"]


def test_page_splits_cpu_by_kind_of_process() -> None:
    """Each kind that used CPU has a column."""
    head, _, *lines = sink_report.profiles(results(everything())).splitlines()
    assert cells(head)[2:] == ["Spark and below", *(KINDS[kind] for kind in KINDS if kind in PROFILE)]
    assert len(lines) == 3 + 4 * 2
    assert cells(lines[0]) == ["raw", "Spark's sink", "3.00", "0.10", "2.00", "0.50", "0.40", "1.50"]
    assert len({each.count("|") for each in (head, *lines)}) == 1


def test_page_states_the_load_of_other_programs() -> None:
    """Below a small limit the machine counts as idle."""
    quiet, busy = run("raw", NATIVE, 1), run("raw", NATIVE, 2)
    busy.others = 1.24
    assert sink_report.load([quiet]) == "No other program was busy."
    assert "0.0 to 1.2 cores" in sink_report.load([quiet, busy])


def test_page_is_reproduced_from_its_json(tmp_path: Path) -> None:
    """The ratios are the first entry of the file."""
    kept = results(everything(), skipped={"cpu_arrow": "why"})
    sink_report.write(tmp_path, kept)
    page = (tmp_path / "sink.md").read_text(encoding="utf-8")
    sink_report.keep(tmp_path, kept)
    (tmp_path / "sink.md").unlink()
    sink_report.main(tmp_path)
    assert (tmp_path / "sink.md").read_text(encoding="utf-8") == page
    document = json.loads((tmp_path / "sink.json").read_text(encoding="utf-8"))
    assert next(iter(document)) == "ratios"
    assert set(document["ratios"]) == set(AIMS)
    assert document["ratios"]["p50_1k"] == 0.5
    assert document["profile"]["raw"][TAILRACE] == PROFILE


def test_page_names_the_settings_of_a_tuned_native_side(tmp_path: Path) -> None:
    """A reader must see that the defaults were changed."""
    kept = results(everything())
    kept.tuned = True
    sink_report.write(tmp_path, kept)
    assert "tuned with `spark.kafka.consumer.cache.capacity=1024`" in (tmp_path / "sink.md").read_text(encoding="utf-8")


def test_progress_line_has_figures_and_profile() -> None:
    """One run is one line."""
    said = line(run("raw", NATIVE, 2, rate=123_456.7, cpu=3.0))
    assert "123,457 records/s" in said
    assert "gateway 0.40, broker 1.50" in said
    assert "\n" not in said


def test_soak_page_shows_the_slope_by_kind_of_process(tmp_path: Path) -> None:
    """The first fifth of the batches is left out, and so is a kind without processes."""
    batches = [float(each) for each in range(0, 1001, 100)]
    memory = {
        JVM: [(each, 500.0 * MB) for each in batches],
        GATEWAY: [(each, (100 + each / 100) * MB if each >= 200 else 9000.0 * MB) for each in batches],
        OTHER: [(each, 0.0) for each in batches],
    }
    cpu = {kind: [(each, each * 0.002) for each in batches] for kind in memory}
    live = {JVM: [(500.0, 70.0 * MB), (1000.0, 70.5 * MB)], "broker": [(500.0, 60.0 * MB), (1000.0, 61.0 * MB)]}
    soaked = Soaked(1000, 100, 120.0, memory, cpu, {"cores": "2"}, live)
    assert [cells(each) for each in soaked.heaps().splitlines()[::2]] == [
        ["MB in use after batch", "500", "1,000"],
        ["JVM", "70.0", "70.5"],
    ]
    lines = [cells(each) for each in soaked.table().splitlines()[2:]]
    assert [each[0] for each in lines] == ["JVM", "gateway"]
    assert lines[0][1:] == ["500", "500", "500", "+0.00 ± 0.00", "2.0"]
    assert lines[1][1:] == ["102", "110", "110", "+10.00 ± 0.00", "2.0"]
    soak_report.write(tmp_path, soaked)
    page = (tmp_path / "soak.md").read_text(encoding="utf-8")
    assert "{" not in page
    soak_report.keep(tmp_path, soaked)
    soak_report.main(tmp_path)
    assert (tmp_path / "soak.md").read_text(encoding="utf-8") == page
    drawn = ElementTree.fromstring((tmp_path / "soak-memory.svg").read_text(encoding="utf-8"))
    assert len(drawn.findall(f"{SVG}polyline")) == 2


def test_heap_in_use_is_the_last_line_of_a_histogram() -> None:
    """Any other text is not a histogram."""
    text = (
        " num     #instances         #bytes  class name (module)\n   1:  5  120  [B (java.base@17)\nTotal   5   120\n"
    )
    assert live_of(text) == 120
    with pytest.raises(ValueError, match="ends with"):
        live_of("   1:  5  120\n")


def test_machine_table_has_no_paths() -> None:
    """Every version is known."""
    versions = machine()
    assert all(versions.values())
    assert "/" not in "".join(versions.values())


def test_projection_keeps_the_fields_of_the_output() -> None:
    """The check and both sides use the same list."""
    assert tuple(projected(json_record(5))) == FIELDS
