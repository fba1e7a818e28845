"""Which runs of `tailrace dev` share a session, and when it is closed."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tailrace.config import Pipeline
from tailrace.demo.kept_session import KeptSession, reloads
from tailrace.driver.shutdown import Stop
from tailrace.errors import ConfigInvalid, FunctionFailed, QueryFailed, TailraceError
from tailrace.status.events import Starting

ARROW = {"arrow": "functions.py:f"}
FRAME = {"function": "functions.py:f"}
JSON = {"topics": ["in"], "format": "json", "schema": "id LONG"}


def pipeline(process: dict[str, str], **sections: Any) -> Pipeline:
    """Return a pipeline with this section `process`."""
    base = {"pipeline": "p", "source": {"topics": ["in"]}, "sink": {"topic": "out", "format": "raw"}}
    return Pipeline.model_validate(base | {"process": process} | sections)


class Sessions:
    """Counts sessions instead of starting them."""

    def __init__(self) -> None:
        self.started = 0
        self.stopped = 0
        self.events: list[object] = []
        self.kept = KeptSession(self.start)

    def start(self, pipeline: Pipeline, emit: object, stop: Stop) -> SparkSession:
        """Start one."""
        self.started += 1
        return cast(SparkSession, self)

    def stop(self) -> None:
        """Stop one, as a session does."""
        self.stopped += 1

    def of(self, pipeline: Pipeline) -> object:
        """Return the session for a run."""
        return self.kept.of(pipeline, self.events.append, Stop())


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (pipeline(ARROW), True),
        (pipeline(ARROW, source=JSON), True),
        (pipeline({}), True),
        (pipeline(FRAME), False),
        (pipeline({}, source=JSON), False),
        (pipeline(ARROW, source={"topics": ["in"], "format": "own.formats:Lines"}), False),
        (pipeline({}, checkpoint="file:/state"), False),
    ],
)
def test_only_code_that_reaches_workers_as_text_is_reloaded(made: Pipeline, expected: bool) -> None:
    """Workers keep the modules that they have imported."""
    assert reloads(made) is expected


def test_runs_of_an_arrow_function_share_a_session() -> None:
    """It is announced once, because only its start takes seconds."""
    sessions = Sessions()
    assert sessions.of(pipeline(ARROW)) is sessions.of(pipeline({"arrow": "functions.py:g"})) is sessions
    assert (sessions.started, sessions.stopped) == (1, 0)
    assert [type(each) for each in sessions.events] == [Starting]


def test_changed_settings_of_spark_get_another_session() -> None:
    """A session has the settings that it was started with."""
    sessions = Sessions()
    sessions.of(pipeline(ARROW))
    sessions.of(pipeline(ARROW, spark={"spark.master": "local[1]"}))
    assert (sessions.started, sessions.stopped) == (2, 1)


def test_function_on_dataframes_gets_a_session_of_its_own() -> None:
    """The run starts it; the kept one is stopped first, because a process holds only one."""
    sessions = Sessions()
    sessions.of(pipeline(ARROW))
    assert sessions.of(pipeline(FRAME)) is None
    assert (sessions.started, sessions.stopped) == (1, 1)


@pytest.mark.parametrize(
    ("error", "stopped"), [(FunctionFailed("f"), 0), (ConfigInvalid("c"), 0), (QueryFailed("q"), 1)]
)
def test_session_survives_mistakes_in_code_and_configuration(error: TailraceError, stopped: int) -> None:
    """After any other error the next run starts another one."""
    sessions = Sessions()
    sessions.of(pipeline(ARROW))
    sessions.kept.failed(error)
    assert sessions.stopped == stopped
