"""The settings that a session of Spark is started with, as far as exactness needs them."""

from __future__ import annotations

import pytest

from tailrace.config import Pipeline, Sink, Source
from tailrace.errors import OptionRefused
from tailrace.startup import jvm, session


@pytest.mark.parametrize("setting", ["spark.sql.adaptive.enabled", "spark.speculation"])
def test_setting_that_would_break_a_batch_stays_off(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """Sizes would decide how rows are dealt out, and copies of a task would fence each other until the batch fails."""
    given: dict[str, str] = {}

    def start(settings: dict[str, str]) -> None:
        given.update(settings)
        raise OptionRefused("the test needs no JVM", then="nothing")

    monkeypatch.setattr(jvm, "start", start)
    monkeypatch.setattr(session, "refuse_second", lambda: None)
    pipeline = Pipeline(pipeline="p", source=Source(topics=["in"]), sink=Sink(topic="out"), spark={setting: "true"})
    with pytest.raises(OptionRefused, match="needs no JVM"):
        session.session(pipeline)
    assert given[setting] == "false"
