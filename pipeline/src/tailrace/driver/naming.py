"""How messages name a batch: by its number and the first of its ranges, in which its records are found again."""

from __future__ import annotations

from tailrace.progress.stream_plan import AnyPlan

_SHOWN = 3  # ranges


def described(plan: AnyPlan) -> str:
    """Name the batch and the ranges of its records."""
    return f"batch {plan.batch}, of {shown(plan)}"


def shown(plan: AnyPlan) -> str:
    """Name the first ranges of a batch."""
    return ", ".join(map(str, plan.ranges[:_SHOWN])) + (", …" if len(plan.ranges) > _SHOWN else "")
