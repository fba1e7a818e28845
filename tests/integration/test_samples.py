"""Samples for the status page, read back from a real Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from tailrace.config import Pipeline
from tailrace.status.samples import HIDDEN, Sampler, Samples
from tailrace.testing import Record, Topics, produce, wait_until

pytestmark = pytest.mark.integration

CARD = "4111 1111"  # with a space, so that no name of a topic contains it


def test_last_records_are_sampled_with_their_reasons_and_without_hidden_fields(tailrace_topics: Topics) -> None:
    """Only committed ones are: a record of an aborted transaction was never delivered."""
    kafka, sink, rejected = tailrace_topics.bootstrap_servers, tailrace_topics("out"), tailrace_topics("rejected")
    values = [b'{"id": %d, "card": "%s"}' % (number, CARD.encode()) for number in range(50)]
    produce(kafka, sink, [Record(value, key=CARD.encode()) for value in values])
    headers = (("tailrace.reason", b"not json"), ("tailrace.detail", f"{CARD} is no JSON".encode()))
    produce(kafka, rejected, [Record(CARD.encode(), headers=headers)])
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{sink}.aborted"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(sink, b'{"id": 99}')
    producer.flush(30)
    producer.abort_transaction(30)
    pipeline = Pipeline.model_validate(
        {
            "pipeline": "sampled",
            "kafka": {"bootstrap.servers": kafka},
            "source": {"topics": ["in"]},
            "sink": {"topic": sink, "format": "json"},
            "rejected": rejected,
            "metrics": {"samples": 3, "redact": ["card"]},
        }
    )
    seen: list[Samples] = []
    sampler = Sampler(pipeline, seen.append)
    sampler.start()
    try:
        found = wait_until(lambda: seen[-1] if seen else None, "the first samples", 60) or seen[-1]
    finally:
        sampler.stop()
    shown = [f'{{"id": {number}, "card": "{HIDDEN}"}}' for number in (47, 48, 49)]
    assert [each["value"] for each in found["delivered"]["records"]] == shown
    assert [each["reason"] for each in found["rejected"]["records"]] == ["not json"]
    assert CARD not in str(found)
