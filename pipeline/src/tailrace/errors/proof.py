"""The errors of proofs and comparisons: results of `verify`, `demo` and `shadow`, not faults of the command."""

from __future__ import annotations

from tailrace.errors.root import TailraceError


class VerifyError(TailraceError):
    """The proof failed."""

    exit_code = 1


class RecordsDiffer(VerifyError):
    """The output does not contain each record exactly once.

    `tailrace verify` and `tailrace demo` read both topics with plain consumers, at read_committed, and count. With
    Spark's own sink, which is at-least-once, expect this after a kill. With Tailrace's sink it is a defect, unless the
    function drops records or makes several of one, and `--each` did not say so: a number, or the place in the input
    where it is (`--each json:$.wanted`).
    """

    code = "TR-601"
    title = "records lost or duplicated"


class NotComparable(VerifyError):
    """The outputs of a pipeline and of its shadow cannot be compared now.

    One of them has not delivered the inputs that the other one has, or the records to compare were deleted or are too
    many. Both pipelines are unaffected.

    Do: let both run until they have caught up (`tailrace offsets show FILE`), then repeat `tailrace shadow diff`. If
    records were deleted or are too many, stop the shadow and begin it again.
    """

    code = "TR-602"
    title = "outputs cannot be compared now"
