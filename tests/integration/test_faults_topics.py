"""A world leaves no topic behind: they would add up, and slow down all that follow on the same brokers."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from faults.worlds.act import delete
from tailrace.testing import Topics, wait_until

pytestmark = pytest.mark.integration


def test_topics_of_a_world_are_gone_after_it(tailrace_topics: Topics) -> None:
    """One that never came to be, such as the ledger of a pipeline that never started, is no failure."""
    admin = AdminClient({"bootstrap.servers": tailrace_topics.bootstrap_servers})
    made = [tailrace_topics(partitions=3), tailrace_topics()]
    delete(tailrace_topics.bootstrap_servers, [*made, "never-made"])
    wait_until(lambda: not {*made} & admin.list_topics(timeout=10).topics.keys(), "the topics to be gone", 30)
