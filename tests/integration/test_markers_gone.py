"""Markers that a start has read, and that the brokers delete before its tasks read them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from integration.test_delivery import break_in_the_middle, faulty
from integration.test_stateful import prepared, refused
from support import dropin
from support.dropin import deliver, read
from support.pipelines import Bench, numbered
from support.threads import Line, first_part_only
from tailrace import errors
from tailrace.driver import open_transactions
from tailrace.progress.marker import markers_group
from tailrace.spark_stream.sink import written_by

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
MakeLine = Callable[..., Line]


def delete(bootstrap: str, name: str) -> None:
    """Delete a pipeline's markers, as the brokers do once all of them have expired."""
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its requests end with it
    admin.delete_consumer_groups([markers_group(name)])[markers_group(name)].result(30)


def do_while_waiting(patched: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let this happen while the start waits for the open transactions of others."""
    wait = open_transactions.wait

    def waits(*given: Any, **named: Any) -> bool:
        act()
        return wait(*given, **named)

    patched.setattr(open_transactions, "wait", waits)


def delete_while_waiting(patched: pytest.MonkeyPatch, bootstrap: str, name: str) -> None:
    """Let the markers be deleted meanwhile."""
    do_while_waiting(patched, lambda: delete(bootstrap, name))


def half_delivered(line: MakeLine) -> Line:
    """Return a pipeline of whose open batch the first of two sink partitions is delivered."""
    one = line(2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(10, 20), partition=1)
    with pytest.raises(errors.QueryFailed):
        one.run(first_part_only)
    return one


def test_marker_deleted_while_a_start_waits_does_not_let_its_part_come_again(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start has seen that the first sink partition is delivered, and gives it no task."""
    one = half_delivered(line)
    delete_while_waiting(monkeypatch, one.kafka, one.name)
    one.run()
    assert one.values() == numbered(0, 20)


def test_marker_set_back_while_a_start_waits_does_not_let_its_part_come_again(
    line: MakeLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither written again nor marked as written without its records."""
    one = half_delivered(line)

    def set_back() -> None:
        admin = AdminClient({"bootstrap.servers": one.kafka})
        old = ConsumerGroupTopicPartitions(markers_group(one.name), [TopicPartition(one.pipeline().ledger.topic, 0, 0)])
        admin.alter_consumer_group_offsets([old])[old.group_id].result(30)

    do_while_waiting(monkeypatch, set_back)
    one.run()
    assert one.values() == numbered(0, 20)


def test_marker_deleted_while_a_start_waits_stops_a_batch_of_spark(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of the part that is open knows that its marker of an earlier batch was read at the start."""
    one = bench(partitions=2)
    for number in (0, 10):
        one.send(numbered(number, number + 5), partition=0)
        one.send(numbered(number + 5, number + 10), partition=1)
        if number == 0:
            one.run()
    break_in_the_middle(one)
    before = one.values()
    assert before == numbered(0, 15)
    delete_while_waiting(monkeypatch, one.kafka, one.name)
    with pytest.raises(errors.ProgressMissing, match=r"sink partition 1 batch 1: its marker, .* is gone") as caught:
        one.run(process=faulty(one))
    assert "TR-306" in caught.value.then
    one.settle()
    assert one.values() == before


@pytest.mark.takes(15)
def test_marker_deleted_while_a_start_waits_stops_a_batch_of_a_stateful_pipeline(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its rejected records too."""
    one, sections = prepared(bench)
    one.fail_in_part(**sections)
    delete_while_waiting(monkeypatch, one.kafka, one.name)
    with pytest.raises(errors.ProgressMissing, match=r"batch 0: its marker, .* is gone"):
        one.run(**sections)
    one.settle()
    found = one.values()
    assert len(found) == len(set(found))
    assert refused(one) == list(range(1, 20, 2))


def test_marker_deleted_before_a_batch_comes_again_stops_a_query_of_the_users(
    bench: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exactly_once` has read it before it lets the tasks write."""
    one = bench(partitions=2)
    dropin.fill(one, 0, 40)

    def job() -> None:
        deliver(dropin.faulty(read(one), tmp_path), one, tmp_path / "c", id=one.name)

    dropin.fail_in_part(one, tmp_path, job)

    def delivers(*given: Any, **named: Any) -> Any:
        delete(one.kafka, one.name)
        return written_by(*given, **named)

    monkeypatch.setattr("tailrace.spark_stream.planned_sink.written_by", delivers)
    with pytest.raises(Exception, match="TR-306"):
        job()
    one.settle()
    found = dropin.numbers(one)
    assert len(found) == len(set(found))
