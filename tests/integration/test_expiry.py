"""Markers that the brokers have expired are never taken for markers that were never written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from integration.test_delivery import break_in_the_middle, faulty
from support.pipelines import Bench, numbered
from tailrace import errors
from tailrace.admin.checks import State
from tailrace.admin.progress_checks import progress
from tailrace.cli.offsets import app
from tailrace.kafka.cluster import Cluster
from tailrace.progress.expiry import retention
from tailrace.progress.ledger import Ledger
from tailrace.progress.marker import Marker, markers_group
from tailrace.progress.plan import SinkPartition
from tailrace.progress.positions import begins
from tailrace.testing import Topics, wait_until
from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions

pytestmark = pytest.mark.integration

MakeBench = Callable[..., Bench]
WEEK = 7 * 24 * 3600


@pytest.fixture
def forgetful(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    """Return a pipeline on brokers that keep offsets only for a minute."""
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with EmbeddedKafka(EmbeddedOptions(settings=settings)) as kafka:
        topics = Topics(kafka.bootstrap_servers)
        yield Bench(topics, spark, tmp_path, f"p-{uuid.uuid4().hex[:8]}", topics("in", 2), topics("out", 1), 2)


def reopen(one: Bench, ago: float) -> None:
    """Leave the ledger like a driver that was killed in its last batch, `ago` seconds before now."""
    with Ledger.of(one.pipeline()) as ledger:
        ledger.take()
        plan = ledger.latest()
        assert plan is not None
        ledger.write(replace(plan, at=time.time() - ago, done=False), begins(plan, plan.ends))


def marker_of(one: Bench, number: int) -> Marker | None:
    """Return a sink partition's marker."""
    with Ledger.of(one.pipeline()) as ledger:
        return ledger.markers().get(SinkPartition(number))


def commit(one: Bench, number: int, marker: Marker) -> None:
    """Commit a marker again, now."""
    consumer = Consumer({"bootstrap.servers": one.kafka, "group.id": markers_group(one.name)})
    place = TopicPartition(one.pipeline().ledger.topic, number, marker.next, marker.metadata)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


@pytest.mark.takes(63)
def test_expired_marker_next_to_a_live_one_is_refused(forgetful: Bench) -> None:
    """The batch was delivered, so continuing would deliver half of it again; its owner decides how to continue."""
    one = forgetful
    one.send(numbered(0, 3), partition=0)
    one.send(numbered(3, 6), partition=1)
    one.run()
    kept = marker_of(one, 0)
    assert kept is not None
    assert retention(Cluster(one.pipeline().kafka).admin).seconds == 60

    def gone() -> bool:
        commit(one, 0, kept)
        return marker_of(one, 1) is None

    wait_until(gone, "the expiry of the marker of sink partition 1", 180, 2.0)
    reopen(one, 61)
    with pytest.raises(errors.ProgressMissing, match=r"1 of its 2 sink partitions have no marker \(1\).*60 seconds"):
        one.run()
    assert one.values() == numbered(0, 6)
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline().model_dump_json(by_alias=True, exclude_defaults=True))
    line = ["set", str(file), f"{one.source}:0=3", f"{one.source}:1=3", "--yes", "--give-up"]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    one.send(numbered(6, 8), partition=1)
    one.run()
    assert one.values() == numbered(0, 8)


def test_open_batch_without_markers_is_refused_when_they_may_have_expired(bench: MakeBench) -> None:
    """This holds for the first batch too, which no other marker could prove."""
    one = bench()
    one.send(numbered(0, 3))
    one.run()
    admin = AdminClient({"bootstrap.servers": one.kafka})
    admin.delete_consumer_groups([markers_group(one.name)])[markers_group(one.name)].result(timeout=30)
    reopen(one, WEEK)
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline().model_dump_json(by_alias=True, exclude_defaults=True))
    assert open_batch(one, file) == (State.FAIL, "tailrace explain TR-306")
    with pytest.raises(errors.ProgressMissing, match="planned 7 days ago and not noted as done") as caught:
        one.run()
    assert caught.value.exit_code == 4
    assert one.values() == numbered(0, 3)
    reopen(one, WEEK - 2 * 24 * 3600)
    assert open_batch(one, file) == (State.WARN, f"tailrace run {file} --batch")


def test_doctor_warns_of_a_partly_delivered_batch(bench: MakeBench) -> None:
    """Markers of the previous batch exist and show that this one is not written: it waits for the next start."""
    one = bench(partitions=2)
    one.send(numbered(0, 10), partition=0)
    one.send(numbered(100, 110), partition=1)
    one.run(process=faulty(one))
    one.send(numbered(10, 20), partition=0)
    one.send(numbered(110, 120), partition=1)
    file = one.folder / "pipeline.yaml"
    file.write_text(one.pipeline().model_dump_json(by_alias=True, exclude_defaults=True))
    assert open_batch(one, file)[0] is State.OK
    break_in_the_middle(one)
    assert open_batch(one, file) == (State.WARN, f"tailrace run {file} --batch")
    one.run(process=faulty(one))
    assert open_batch(one, file)[0] is State.OK


def open_batch(one: Bench, file: Path) -> tuple[State, str]:
    """Return the doctor's verdict on the open batch, and its advice."""
    [found] = [each for each in progress(one.pipeline(), one.folder, file) if each.name == "open batch"]
    return found.state, found.hint


def test_old_batch_with_all_its_markers_is_finished(bench: MakeBench) -> None:
    """It does not matter how long ago it was planned."""
    one = bench()
    one.send(numbered(0, 3))
    one.run()
    reopen(one, 10 * WEEK)
    one.send(numbered(3, 5))
    one.run()
    assert one.values() == numbered(0, 5)
