"""What comes out of Spark as a Java exception is reported in Tailrace's words."""

from __future__ import annotations

import pytest

from tailrace import errors
from tailrace.config import Pipeline, Process, Sink, Source
from tailrace.driver.spark_errors import failure

PIPELINE = Pipeline(
    pipeline="orders",
    source=Source(topics=["in"]),
    process=Process(function="orders.py:clean"),
    sink=Sink(topic="out"),
)
TRACE = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/pyspark/worker.py", line 12, in main
    process()
  File "/app/orders.py", line 33, in clean
    return int(text)
{end}
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:665)
"""


def test_an_error_of_ours_keeps_its_code_and_all_its_parts() -> None:
    """A task's own words survive the way through the JVM."""
    ours = errors.RecordTooLarge("a record of 6 bytes", kept="everything", then="raise the limit")
    found = failure(RuntimeError(TRACE.format(end=f"tailrace.errors.RecordTooLarge: {ours}")), PIPELINE)
    assert isinstance(found, errors.RecordTooLarge)
    assert (found.what, found.kept, found.then) == ("a record of 6 bytes", "everything", "raise the limit")


def test_the_users_error_is_named_with_its_own_line() -> None:
    """Not Spark's files, nor Tailrace's: the last line of the user's code."""
    found = failure(RuntimeError(TRACE.format(end="ValueError: invalid literal for int(): 'x'")), PIPELINE)
    assert isinstance(found, errors.FunctionFailed)
    assert "ValueError: invalid literal for int(): 'x' (orders.py:33 in clean)" in found.what
    assert "'orders.py:clean'" in found.what


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("StreamingQueryException: orders-1 are gone. Some data may have been missed.", errors.SourceChanged),
        ("Partition in-0's offset was changed from 9 to 2, some data may have been missed.", errors.OffsetsOutOfRange),
        (
            "java.util.concurrent.TimeoutException: Timed out waiting for a node assignment. Call: x",
            errors.BrokerUnreachable,
        ),
        ("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero", errors.FunctionFailed),
        ("something that nobody has seen before", errors.QueryFailed),
    ],
)
def test_sparks_reasons_have_codes(text: str, kind: type[errors.TailraceError]) -> None:
    """Each kind of failure leads to the explanation that fits it."""
    assert type(failure(RuntimeError(text), PIPELINE)) is kind


def test_an_error_that_is_ours_already_is_left_alone() -> None:
    """No error is wrapped twice."""
    error = errors.DriverFenced("fenced")
    assert failure(error, PIPELINE) is error


def test_the_batch_that_failed_is_named_where_the_users_code_did() -> None:
    """With where its records are, so that they can be looked at."""
    found = failure(RuntimeError(TRACE.format(end="ValueError: x")), PIPELINE, "batch 7, of in-0:12-24")
    assert found.what.endswith("; in batch 7, of in-0:12-24")
