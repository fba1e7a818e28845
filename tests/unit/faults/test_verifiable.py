"""The comparison of what Kafka's verifiable clients said finds each planted mistake."""

from __future__ import annotations

import pytest

from faults.scenarios.verifiable import compared
from support.verifiable import Said

SENT = [Said("1", str(number), number % 2, number // 2) for number in range(6)]
GOT = [Said("1", str(number), 0, 10 + number) for number in range(6)]


@pytest.mark.parametrize(
    ("got", "found"),
    [
        (GOT, (0, 0, 0)),
        ([*GOT[:3], *GOT[4:]], (1, 0, 0)),
        ([*GOT, GOT[5]], (0, 1, 0)),
        ([*GOT, Said(None, "77", 0, 99)], (0, 1, 0)),
        ([GOT[2], GOT[0], *GOT[3:], GOT[1]], (0, 0, 2)),
        ([GOT[1], GOT[0], *GOT[2:]], (0, 0, 0)),  # of different source partitions
    ],
    ids=["right", "lost", "twice", "never sent", "out of order", "between partitions"],
)
def test_each_mistake_is_counted(got: list[Said], found: tuple[int, int, int]) -> None:
    """Lost, duplicated and reordered records, and nothing else."""
    assert compared(SENT, got) == found
