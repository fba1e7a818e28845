"""How an engine's cut is compared with that of a plan in the ledger."""

from __future__ import annotations

import pytest

from tailrace.driver.engine import Cut
from tailrace.progress.plan import BatchId, Plan


def hashed(*names: str) -> str:
    """Return a shuffle as Spark prints it, with these variables of lambda functions."""
    return f"hashpartitioning(transform(a, lambdafunction({', '.join(f'lambda {name}' for name in names)}, false)), 3)"


@pytest.mark.parametrize(
    ("planned", "now", "fits"),
    [
        (("x_1",), ("x_4",), True),
        (("x_4", "y_5", "x_4"), ("x_11", "y_12", "x_11"), True),
        (("x_1", "x_2", "x_1"), ("x_4", "x_5", "x_5"), False),
        (("x_1",), ("y_1",), False),
        (("x",), ("x",), True),
    ],
)
def test_plan_fits_whatever_number_spark_gave_a_lambda_variable(
    planned: tuple[str, ...], now: tuple[str, ...], fits: bool
) -> None:
    """Which variable is used where still counts."""
    plan = Plan("p", BatchId(0), "", {}, ((),), 3, {}, shuffles=True, cut=(hashed(*planned),))
    assert Cut(True, 3, (hashed(*now),)).fits(plan) is fits
