"""Translation of Spark's exceptions into Tailrace's errors.

An error that a task raised reaches the driver as the text of a Java exception around a Python traceback. The code
in that text distinguishes Tailrace's own errors from those of the user's function and of Spark.
"""

from __future__ import annotations

import os
import re
import tempfile

from tailrace import errors
from tailrace.config import Pipeline
from tailrace.kafka.errors import denied
from tailrace.kafka.errors import stranger as not_let_in
from tailrace.kafka.rights import SPARK_GROUPS, Operation, Resource, Right, on_topic

_BY_CODE = {kind.code: kind for kind in errors.all_errors()}
_OURS = re.compile(
    r"(?P<code>TR-\d{3}) [^:\n]+: (?P<what>[^\n]+)"
    r"(?:\n\s*kept safe: (?P<kept>[^\n]+))?(?:\n\s*next: (?P<then>[^\n]+))?"
)
_KEPT = "the batch's open transactions were aborted; the batch is read again at the next start"
_LOST_DATA = re.compile(
    r"([^\n]*(?:are gone|some data may have been missed|data may have been lost)[^\n]*)", re.IGNORECASE
)
_REASON = re.compile(r"\nReason: ([^\n]+)")
_FULL = "No space left on device"
_FULL_PATH = re.compile(rf"(/[^\s:()]+)[^\n/]*{_FULL}")
_FUNCTION = ("PythonException", "ArithmeticException", "RuntimeException: [", "NumberFormatException",
             "DateTimeException", "ArrayIndexOutOfBoundsException", "USER_RAISED_EXCEPTION", "PythonUDFException",
             "SparkUpgradeException")  # fmt: skip
# Code that is not the user's. The function's own file may be below a folder `tailrace`, as it is on Kubernetes.
_NOT_THEIRS = re.compile(r"/pyspark/|/(?:site-packages|src)/tailrace/")
# Of Spark's own consumer and admin client, which the batches of stateful pipelines are read by.
_UNREACHABLE = (
    "TimeoutException: Timed out waiting for a node assignment",
    "TimeoutException: Timed out waiting to send the call",
    "TimeoutException: Call(callName=",
    "TimeoutException: Cannot fetch record for offset",
    "expired before the position for partition",
    "No resolvable bootstrap urls",
)
# Exceptions of these packages concern the checkpoint: nothing else is on an object store.
_STORE = ("org.apache.hadoop.fs.s3a", "software.amazon.awssdk", "PathIOException", "AWSBadRequestException")
_GONE = ("UnknownTopicOrPartitionException",)
_DENIED_TOPIC = re.compile(r"Not authorized to access topics: \[([^\],]+)")
_DENIED_GROUP = re.compile(r"Not authorized to access group: (\S+)")
_STRANGER = re.compile(r"(?:SaslAuthentication|SslAuthentication)Exception: ([^\n]+)")


def failure(error: BaseException, pipeline: Pipeline, batch: str = "") -> errors.TailraceError:
    """Return the error to report for an exception that came through Spark; `batch` names the batch in progress."""
    if isinstance(error, errors.TailraceError):
        return error
    text = f"{type(error).__name__}: {error}"
    found = _OURS.search(text)
    if found is not None and found["code"] in _BY_CODE:
        return _BY_CODE[found["code"]](found["what"].strip(), kept=found["kept"] or "", then=found["then"] or "")
    refused = _refused(text)
    if refused is not None:
        return refused
    for sign in _UNREACHABLE:
        if sign in text:
            return errors.BrokerUnreachable(
                f"the brokers at {pipeline.kafka.bootstrap_servers} no longer answer, or do not deliver what is read: "
                f"{_first(text, sign)}",
                kept=_KEPT,
                then="tailrace doctor FILE",
            )
    if any(sign in text for sign in _GONE):
        read = pipeline.source.pattern or ", ".join(pipeline.source.topics)
        why = _first(text, "UnknownTopicOrPartition")
        return errors.SourceChanged(f"a source topic ({read}) is gone: {why}", kept=_KEPT, then="tailrace doctor FILE")
    lost = _LOST_DATA.search(text)
    if lost is not None:
        gone = "gone" in lost[1]
        kind = errors.SourceChanged if gone else errors.OffsetsOutOfRange
        reason = _REASON.search(text, lost.end())
        return kind(
            (lost[1] if reason is None else f"{lost[1].rstrip(';')}: {reason[1]}").strip()[:500],
            kept="everything that was delivered; nothing more was read",
            then="set source.on_data_loss: reset to continue with the records that exist, or restore the topic",
        )
    if any(sign in text for sign in _STORE):
        return errors.CheckpointFailed(
            f"checkpoint {pipeline.checkpoint}: {_cause(text)}",
            kept=_KEPT,
            then="check that the object store works (`tailrace doctor FILE`), then start the pipeline again",
        )
    if "STREAMING_CHECKPOINT" in text:
        return errors.CheckpointMismatch(
            f"Spark does not accept the checkpoint {pipeline.checkpoint}: {_first(text, 'STREAMING_CHECKPOINT')}",
            kept="everything that was delivered; nothing more was read",
            then="restore the folder as it was; if it is gone, so is the state: `tailrace explain TR-307`",
        )
    if _FULL in text and "PythonException" not in text:  # Python's own error has the path, and the line of the function
        return errors.QueryFailed(
            f"{_full(text, pipeline)} is full: {_first(text, _FULL)}{batch and f'; in {batch}'}",
            kept=_KEPT,
            then="free space there, or set spark.local.dir to a larger folder, then start the pipeline again",
        )
    if any(sign in text for sign in _FUNCTION):
        return errors.FunctionFailed(
            f"function {pipeline.process.function!r}: {_cause(text)}{batch and f'; in {batch}'}",
            kept=_KEPT,
            then="fix the function, then start again",
        )
    return errors.QueryFailed(
        f"{_cause(text)}{batch and f'; in {batch}'}", kept=_KEPT, then="start the pipeline again; tailrace doctor FILE"
    )


def _refused(text: str) -> errors.TailraceError | None:
    """Return the error for a right that Spark's own consumer lacks: it needs those of the source."""
    topic, group, stranger = (each.search(text) for each in (_DENIED_TOPIC, _DENIED_GROUP, _STRANGER))
    if topic is not None:
        return denied(f"reading topic {topic[1]!r} was denied", [on_topic(Operation.READ, topic[1])], _KEPT)
    if group is not None:
        lacking = Right(Operation.READ, Resource.GROUP, SPARK_GROUPS, prefix=True)
        return denied(f"reading as group {group[1]!r} was denied", [lacking], _KEPT)
    return None if stranger is None else not_let_in(f"the source's consumer was not let in: {stranger[1]}", _KEPT)


def _full(text: str, pipeline: Pipeline) -> str:
    """Name the folder that is full; Java often leaves it out, and then it is one of those that Spark writes to."""
    named = _FULL_PATH.search(text)
    if named is not None:
        return f"the disk of {named[1]}"
    scratch = os.environ.get("SPARK_LOCAL_DIRS") or pipeline.spark.get("spark.local.dir", tempfile.gettempdir())
    checkpoint = "" if pipeline.checkpoint == "ledger" else f" or of the checkpoint ({pipeline.checkpoint})"
    return f"the disk of spark.local.dir ({scratch}){checkpoint}, on the driver or an executor,"


def _cause(text: str) -> str:
    """Return the line that says what went wrong, followed by the line of the user's code if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [
        i for i, line in enumerate(lines) if re.match(r"[A-Za-z_.]*(Error|Exception|Warning)\b.*", line) and i > 0
    ]
    where = [line for line in lines if line.startswith('File "') and not _NOT_THEIRS.search(line)]
    if where and raised:
        place = re.sub(r'File "(?:.*/)?([^"/]+)", line (\d+), in (\S+)', r"\1:\2 in \3", where[-1])
        after = [i for i in raised if i > lines.index(where[-1])]
        return f"{lines[after[0] if after else raised[-1]]} ({place})"[:800]
    framed = max((i for i, line in enumerate(lines) if line.startswith('File "')), default=None)
    below = [i for i in raised if framed is not None and i > framed]
    if below:
        return lines[below[0]][:800]
    caused = [line for line in lines if line.startswith("Caused by:")]
    return (caused[-1] if caused else lines[0])[:800]


def _first(text: str, word: str) -> str:
    return next((line.strip() for line in text.splitlines() if word in line), word)[:500]
