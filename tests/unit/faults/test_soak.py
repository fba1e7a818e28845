"""The table of a soak shows what grows."""

from __future__ import annotations

from faults.worlds.soak import KINDS_OF_STRIKE, Samples, table, world
from faults.worlds.world import DELETIONS, Place


def test_slope_per_hour_leaves_out_the_warm_up() -> None:
    """Memory that grows in the first minutes only is no leak."""
    hours = [number / 10 for number in range(51)]
    samples: Samples = {
        "leaking": [(hour, 100 + 20 * hour) for hour in hours],
        "steady": [(hour, 500.0 if hour >= 1 else 0.0) for hour in hours],
    }
    lines = table(samples).splitlines()[2:]
    assert lines == [
        "| leaking | 120 | 200 | 200 | +20.0 ± 0.0 |",
        "| steady | 500 | 500 | 500 | +0.0 ± 0.0 |",
    ]


def test_no_strike_of_a_soak_changes_its_input_or_its_settings() -> None:
    """Otherwise a slope would show the strike, and the strikes after it would meet another pipeline."""
    assert not DELETIONS.intersection(KINDS_OF_STRIKE)
    assert world(1, Place.SPARK).strikes == KINDS_OF_STRIKE
