"""What a backfill says must not lead anybody to the live pipeline's offsets."""

from __future__ import annotations

import pytest

from tailrace.cli.backfill import told_apart
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
