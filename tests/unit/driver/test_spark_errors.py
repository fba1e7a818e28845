"""Java exceptions from Spark are reported in Tailrace's words."""

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


def test_a_tailrace_error_keeps_its_code_and_all_its_parts() -> None:
    """A task's own message survives the way through the JVM."""
    ours = errors.RecordTooLarge("a record of 6 bytes", kept="everything", then="raise the limit")
    found = failure(RuntimeError(TRACE.format(end=f"tailrace.errors.RecordTooLarge: {ours}")), PIPELINE)
    assert isinstance(found, errors.RecordTooLarge)
    assert (found.what, found.kept, found.then) == ("a record of 6 bytes", "everything", "raise the limit")


def test_contested_batch_is_still_told_from_another_doubt_behind_the_jvm() -> None:
    """Only the contested one is delivered again by the driver that leads."""
    for kind in (errors.Contested, errors.CommitInDoubt):
        text = TRACE.format(end=f"tailrace.errors.{kind.__name__}: {kind('sink partition 3: no answer')}")
        assert type(failure(RuntimeError(text), PIPELINE)) is kind


def test_the_users_error_is_named_with_its_own_line() -> None:
    """The line is the last one of the user's code, not of Spark's files or Tailrace's."""
    found = failure(RuntimeError(TRACE.format(end="ValueError: invalid literal for int(): 'x'")), PIPELINE)
    assert isinstance(found, errors.FunctionFailed)
    assert "ValueError: invalid literal for int(): 'x' (orders.py:33 in clean)" in found.what
    assert "'orders.py:clean'" in found.what


REMOTE = """PythonException:\x20
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/tailrace/lib/python3.11/site-packages/pyspark/worker.py", line 3, in process
    x()
  File "{file}", line 4, in <lambda>
    check = F.udf(lambda n: 1 / n)
ZeroDivisionError: division by zero

JVM stacktrace:
org.apache.spark.api.python.PythonException
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""


def test_users_error_is_named_where_the_executors_folder_is_called_tailrace() -> None:
    """On Kubernetes the function's file is below /run/tailrace, which is not Tailrace's own code."""
    text = REMOTE.format(file="/run/tailrace/spark-0c5e/userFiles-1/fees.py")
    assert failure(RuntimeError(text), PIPELINE).what.endswith(
        "ZeroDivisionError: division by zero (fees.py:4 in <lambda>)"
    )


def test_users_error_is_named_if_no_line_of_it_is_the_users() -> None:
    """A function of a library that is called directly."""
    text = REMOTE.format(file="/opt/tailrace/lib/python3.11/site-packages/tailrace/driver/tasks.py")
    assert failure(RuntimeError(text), PIPELINE).what.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("StreamingQueryException: orders-1 are gone. Some data may have been missed.", errors.SourceChanged),
        ("Partition in-0's offset was changed from 9 to 2, some data may have been missed.", errors.OffsetsOutOfRange),
        (
            "java.util.concurrent.TimeoutException: Timed out waiting for a node assignment. Call: x",
            errors.BrokerUnreachable,
        ),
        (
            (
                "org.apache.kafka.common.errors.TimeoutException: Call(callName=listOffsets, deadlineMs=1, tries=2, "
                "nextAllowedTryMs=3) timed out at 4 after 2 attempt(s)"
            ),
            errors.BrokerUnreachable,
        ),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 12 in 120000 milliseconds",
            errors.BrokerUnreachable,
        ),
        (
            (
                "org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before the position for "
                "partition in-0 could be determined"
            ),
            errors.BrokerUnreachable,
        ),
        ("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero", errors.FunctionFailed),
        ("something that nobody has seen before", errors.QueryFailed),
    ],
)
def test_sparks_reasons_have_codes(text: str, kind: type[errors.TailraceError]) -> None:
    """Each kind of failure leads to the explanation that fits it."""
    assert type(failure(RuntimeError(text), PIPELINE)) is kind


def test_a_tailrace_error_is_not_wrapped() -> None:
    """No error is wrapped twice."""
    error = errors.DriverFenced("fenced")
    assert failure(error, PIPELINE) is error


def test_the_failed_batch_is_named_if_the_users_code_failed() -> None:
    """The message says where its records are, so that they can be inspected."""
    found = failure(RuntimeError(TRACE.format(end="ValueError: x")), PIPELINE, "batch 7, of in-0:12-24")
    assert found.what.endswith("; in batch 7, of in-0:12-24")


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        (
            "java.io.FileNotFoundException: /scratch/blockmgr-1/0c/temp (No space left on device)",
            "/scratch/blockmgr-1/0c/temp",
        ),
        ("java.nio.file.FileSystemException: /state/1.delta: No space left on device", "/state/1.delta"),
        ("org.apache.spark.SparkException: x\nCaused by: java.io.IOException: No space left on device", "/my/scratch"),
    ],
)
def test_full_disk_is_named_with_its_folder(text: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java often leaves the folder out; then those that Spark writes to are named."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    pipeline = PIPELINE.model_copy(update={"spark": {"spark.local.dir": "/my/scratch"}})
    found = failure(RuntimeError(text), pipeline)
    assert isinstance(found, errors.QueryFailed)
    assert folder in found.what.partition(" is full: ")[0]
    assert "free space" in found.then


def test_function_that_fills_a_disk_is_still_the_functions_error() -> None:
    """Its own line says more than Spark's folders."""
    end = "OSError: [Errno 28] No space left on device: '/data/out.bin'"
    found = failure(RuntimeError(TRACE.format(end=end)), PIPELINE)
    assert isinstance(found, errors.FunctionFailed)
    assert "/data/out.bin" in found.what
