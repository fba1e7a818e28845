"""The declared metrics: their names, their number, and their export to Prometheus."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.errors import InvariantBroken
from tailrace.telemetry import metrics
from tailrace.telemetry.measure import Measures
from tailrace.telemetry.metrics import Kind, Metric, group

EVERY = metrics.DRIVER + metrics.EXECUTOR + metrics.BOTH
UNITS = ("_seconds", "_bytes")


def samples(measures: Measures) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what Prometheus reads, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(measures.text().decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_declaration_is_exported() -> None:
    """It is in exactly one of the lists from which the endpoints and the page are made."""
    declared = {name for name, value in vars(metrics).items() if isinstance(value, Metric)}
    assert len(declared) == len(EVERY) == len({each.name for each in EVERY})


@pytest.mark.parametrize("metric", EVERY, ids=lambda metric: metric.name)
def test_a_name_follows_the_prometheus_conventions(metric: Metric) -> None:
    """It has lower-case letters, the unit at the end, and `_total` if and only if it is a counter."""
    assert re.fullmatch(r"tailrace(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    stem = metric.name.removesuffix("_total")
    assert metric.kind is not Kind.HISTOGRAM or stem.endswith(UNITS)
    assert not re.search(r"_(ms|millis|kb|mb|percent)(_|$)", stem)
    assert not stem.endswith(("_count", "_sum", "_bucket"))
    assert re.fullmatch(r"[A-Z0-9].*\.", metric.help)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)


def test_every_label_is_explained_and_used() -> None:
    """The page has a line for each."""
    assert {label for metric in EVERY for label in metric.labels} == set(metrics.LABELS)


def test_sink_partitions_are_exported_in_groups() -> None:
    """However many there are, the groups are few."""
    assert [group(0), group(15), group(16), group(127)] == ["0-15", "0-15", "16-31", "112-127"]
    assert {group(number) for number in range(128, 5000)} == {"128+"}
    assert len({group(number) for number in range(5000)}) == metrics.GROUPS + 1


def test_what_was_counted_is_what_prometheus_reads() -> None:
    """This covers counters, gauges and histograms, with their labels."""
    measures = Measures(EVERY)
    measures.add(metrics.REJECTED_RECORDS, "p", 'a "quoted"\nreason', by=3)
    measures.set(metrics.LAG, "p", "in", 2, value=7)
    for value in (0.05, 0.06, 4000.0):
        measures.observe(metrics.BATCH_SECONDS, "p", value=value)
    found = samples(measures)
    assert found["tailrace_rejected_records_total", (("pipeline", "p"), ("reason", 'a "quoted"\nreason'))] == 3
    assert found["tailrace_lag_records", (("partition", "2"), ("pipeline", "p"), ("topic", "in"))] == 7
    name = "tailrace_batch_seconds"
    buckets = [found[f"{name}_bucket", (("le", bound), ("pipeline", "p"))] for bound in ("0.05", "0.1", "1800", "+Inf")]
    assert buckets == [1, 2, 2, 3]
    assert found[f"{name}_count", (("pipeline", "p"),)] == 3
    assert found[f"{name}_sum", (("pipeline", "p"),)] == pytest.approx(4000.11)
    assert not [key for key, _ in found if key.endswith("_created")]


def test_labels_from_outside_are_bounded() -> None:
    """Values beyond the limit are counted together, and nothing is lost."""
    measures = Measures(EVERY)
    for number in range(metrics.PIPELINES + 10):
        measures.add(metrics.BATCHES, f"p{number}")
    found = measures.values(metrics.BATCHES)
    assert len(found) == metrics.PIPELINES + 1
    assert sum(found.values()) == metrics.PIPELINES + 10
    assert found[(metrics.OTHER,)] == 10


def test_a_total_continues_after_its_source_restarts() -> None:
    """A counter of another process that was restarted must not decrease here."""
    measures = Measures(EVERY)
    for value in (5, 8, 2, 3):
        measures.total(metrics.CREATED, "p", "sink", value=value)
    assert measures.value(metrics.CREATED, "p", "sink") == 11


def test_a_gauge_is_removed_with_its_subject() -> None:
    """A topic partition that no longer exists has no lag."""
    measures = Measures(EVERY)
    measures.replace(metrics.LAG, {("p", "in", 0): 1, ("p", "in", 1): 2})
    measures.replace(metrics.LAG, {("p", "in", 1): 3})
    assert measures.values(metrics.LAG) == {("p", "in", "1"): 3}
    measures.replace(metrics.LAG, {})
    assert measures.values(metrics.LAG) == {}


def test_a_wrong_use_is_a_defect() -> None:
    """It may be another kind, other labels, or a metric that this endpoint does not have."""
    measures = Measures(metrics.DRIVER)
    with pytest.raises(InvariantBroken):
        measures.set(metrics.BATCHES, "p", value=1)
    with pytest.raises(InvariantBroken):
        measures.add(metrics.BATCHES, "p", "more")
    with pytest.raises(InvariantBroken):
        measures.add(metrics.BEGUN, "p", "0-15")
