"""The error of a failed proof: the result of `verify` or `demo`, not a fault of the command."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class VerifyError(TailraceError):
    """The proof failed."""

    exit_code = 1


class RecordsDiffer(VerifyError):
    """The output does not contain each record exactly once.

    `tailrace verify` and `tailrace demo` read both topics with plain consumers, at read_committed, and count. With
    Spark's own sink, which is at-least-once, expect this after a kill. With Tailrace's sink it is a defect.
    """

    code = "TR-601"
    title = "records lost or duplicated"
