"""What a backfill says: nothing that leads anybody to the live pipeline's offsets, or to an unfinished topic."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from tailrace.admin.backfill import Extent, Request
from tailrace.cli import backfill
from tailrace.cli.backfill import told_apart
from tailrace.cli.terminal import Output
from tailrace.config import Pipeline, Sink, Source
from tailrace.driver.shutdown import Stop
from tailrace.errors import DeliveryError, DriverFenced, KafkaError, OffsetsOutOfRange, ProgressMissing, SourceChanged
from tailrace.kafka.topics import recreation
from tailrace.progress.expiry import THEN


@pytest.mark.parametrize("error", [ProgressMissing("lost", then=THEN), recreation(["in"], "since batch 3", "all")])
def test_advice_with_a_command_is_about_the_backfill(error: DeliveryError) -> None:
    """The file at hand is the live pipeline's, and its records would be delivered again."""
    with pytest.raises(type(error)) as caught, told_apart("live-backfill-12345678", "live", "again"):
        raise error
    assert (caught.value.what, caught.value.kept) == (error.what, error.kept)
    assert "tailrace offsets" not in caught.value.then
    assert "tailrace backfill --into TOPIC" in caught.value.then


@pytest.mark.parametrize("kind", [OffsetsOutOfRange, SourceChanged])
def test_advice_on_lost_records_leaves_the_settings_of_the_pipeline_alone(kind: type[KafkaError]) -> None:
    """A backfill never skips a loss, so the setting would only let the live pipeline skip one."""
    error = kind("gone", kept="all", then="restore the topic, or set source.on_data_loss: reset to continue without it")
    with pytest.raises(kind) as caught, told_apart("live-backfill-12345678", "live", "again"):
        raise error
    assert (caught.value.what, caught.value.kept) == ("gone", "all")
    assert "leave source.on_data_loss alone" in caught.value.then
    assert "--partial --into TOPIC" in caught.value.then
    assert "'again'" in caught.value.then


def test_other_advice_is_left_as_it_is() -> None:
    """A backfill that another one replaced has nothing to do."""
    fenced = DriverFenced("another driver leads", then="nothing: the other one goes on")
    with pytest.raises(DriverFenced) as caught, told_apart("live-backfill-12345678", "live", "again"):
        raise fenced
    assert caught.value is fenced


def report(monkeypatch: pytest.MonkeyPatch, finished: bool) -> int:
    """Deliver a backfill that a signal may end; return the exit code."""
    extents = iter([Extent({}, {}, {}, begun=True), Extent({}, {}, {}, begun=True, finished=finished)])
    monkeypatch.setattr(backfill, "_extent", lambda *args, **options: next(extents))
    monkeypatch.setattr("tailrace.startup.run.run", lambda *args, **options: None)
    monkeypatch.setattr(backfill, "stops_on_signals", Stop)
    monkeypatch.setattr(backfill, "log_to_stderr", lambda: None)
    given = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"))
    request = Request(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC), "again")
    try:
        backfill._deliver(given, Path(), request, Output.TEXT, dry_run=False)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


@pytest.mark.parametrize(("finished", "code"), [(True, 0), (False, 1)])
def test_backfill_that_was_stopped_does_not_end_like_one_that_has_delivered_its_range(
    monkeypatch: pytest.MonkeyPatch, finished: bool, code: int
) -> None:
    """What follows in a script would read a topic without the rest."""
    assert report(monkeypatch, finished) == code
