"""The error of the proof, which is a verdict and not a fault of the command that finds it."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class VerifyError(TailraceError):
    """The proof failed."""

    exit_code = 1


class RecordsDiffer(VerifyError):
    """The output does not hold each record exactly once.

    `tailrace verify` and `tailrace demo` read both topics with plain consumers, at read_committed, and count. With
    Spark's own sink this is expected after a kill: it is at-least-once. With Tailrace's it is a defect.
    """

    code = "TR-601"
    title = "records lost or duplicated"
