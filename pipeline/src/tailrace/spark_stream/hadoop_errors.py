"""What Hadoop and Spark say about a checkpoint's files and its state, as errors with advice that helps there."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JJavaError

from tailrace.config import Pipeline
from tailrace.errors import CheckpointFailed, CheckpointMismatch, QueryFailed, TailraceError

KEPT = "what was committed stays delivered, once; the batch is read again, and what it had delivered is skipped"
# In Spark's error conditions.
_STATE_SIGNS = (
    "STREAMING_STATEFUL_OPERATOR",
    "SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_INVALID_",
    "FAMILY_SCHEMA_INCOMPAT",
)
_STORE = "check the object store with `tailrace doctor FILE`, then start the pipeline again"
_FOLDER = (
    "check that the driver may write the folder and that there is space on its disk, then start the pipeline again"
)


@dataclass(frozen=True)
class Asking:
    """Turns what Hadoop raises into CheckpointFailed."""

    doing: str
    remote: bool

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Py4JJavaError):
            said = next(iter(str(error.java_exception.toString()).splitlines()), "")
            raise failed(f"{self.doing}: {said[:500]}", self.remote) from error


def failed(what: str, remote: bool) -> CheckpointFailed:
    """Return the error."""
    return CheckpointFailed(what, kept=KEPT, then=_STORE if remote else _FOLDER)


def lacking(place: str, missing: list[str], when: str, remote: bool) -> CheckpointFailed:
    """Return the error for files that were written, and are not there."""
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    why = "a write to the object store failed, and Spark continued" if remote else "somebody has changed the folder"
    return failed(f"{when}, the checkpoint {place} lacks {', '.join(missing[:3])}{more}: {why}", remote)


def of_state(found: TailraceError, pipeline: Pipeline) -> TailraceError:
    """Return the error of a query whose state was written by another function, or is lost; or the error as it is."""
    if not isinstance(found, QueryFailed) or not any(sign in found.what for sign in _STATE_SIGNS):
        return found
    return CheckpointMismatch(
        f"the state in the checkpoint {pipeline.checkpoint} is not that of this function: {found.what}",
        kept="everything that was delivered; nothing more was read",
        then="start with the function that has written it, or restore the folder; for another one, give the pipeline a "
        "new name and a new checkpoint: `tailrace explain TR-307`",
    )
