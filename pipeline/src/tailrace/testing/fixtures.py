"""The pytest plugin: a real Kafka, and topics for each test.

pytest loads this module in every test run on a machine that has Tailrace installed, so importing it imports neither
Spark nor Kafka, and the broker starts when the first test asks for it. The fixtures:

- `tailrace_kafka`: an `EmbeddedKafka` with one broker, for the session.
- `tailrace_topics`: a factory of topics that no other test uses, `tailrace_topics("in", partitions=4)`.
- `tailrace_secured_kafka`: a Kafka that requires a password or a certificate, and allows only what is granted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.testing.embedded import EmbeddedKafka, EmbeddedOptions
from tailrace.testing.records import Topics, forget_producers


@pytest.fixture(scope="session")
def tailrace_kafka() -> Iterator[EmbeddedKafka]:
    """Provide a real Kafka with one broker, started for the first test that asks and stopped after the last."""
    with EmbeddedKafka() as kafka:
        yield kafka
    forget_producers()


@pytest.fixture(scope="session")
def tailrace_secured_kafka() -> Iterator[EmbeddedKafka]:
    """Provide a real, secured Kafka: `security` makes users and certificates, and grants permissions."""
    with EmbeddedKafka(EmbeddedOptions(secured=True)) as kafka:
        yield kafka
    forget_producers()


@pytest.fixture
def tailrace_topics(tailrace_kafka: EmbeddedKafka) -> Topics:
    """Provide a factory of topics on `tailrace_kafka`: `tailrace_topics(name="in", partitions=1, **config)`."""
    return Topics(tailrace_kafka.bootstrap_servers)
