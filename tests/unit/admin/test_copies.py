"""Which pipelines read another one's source, by their names."""

from __future__ import annotations

import pytest

from tailrace.admin import copies
from tailrace.config import Kafka
from tailrace.errors import OptionRefused

NOWHERE = Kafka(bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("orders-backfill-0a1b2c3d", True),
        ("orders-backfill-01234567", True),
        ("orders-backfill-20261101", False),
        ("orders-backfill-2026110", False),
        ("backfill-0a1b2c3d", False),
    ],
)
def test_name_of_a_backfill_has_its_digest_and_not_a_date(name: str, is_one: bool) -> None:
    """Somebody may copy a file, and name the copy after the day."""
    assert copies.is_backfill(name) == is_one


@pytest.mark.parametrize("name", ["orders-backfill-0a1b2c3d", "orders-shadow"])
def test_copy_that_its_name_tells_is_refused_without_asking_the_brokers(name: str) -> None:
    """They keep where a shadow began for some days only."""
    with pytest.raises(OptionRefused, match="the live pipeline would read them again") as refused:
        copies.refuse(NOWHERE, [name])
    wanted = "--into TOPIC" if "backfill" in name else "tailrace shadow begin FILE --live NAME --sink TOPIC"
    assert wanted in refused.value.then
