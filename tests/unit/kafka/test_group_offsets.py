"""Where another job's group is read: at the broker on which all agree that it has the group."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tailrace import errors
from tailrace.config import Kafka
from tailrace.kafka import group_offsets as module
from tailrace.kafka.cluster import Cluster
from tailrace.kafka.group_offsets import group_offsets

ADDRESSES = {1: "a:1", 2: "b:2", 3: "c:3"}
SILENT, DENIED = errors.BrokerUnreachable("no answer"), errors.NotAuthorized("the group may not be read")


def ask(monkeypatch: pytest.MonkeyPatch, told: dict[int, Any]) -> dict[tuple[str, int], TopicPartition]:
    """Ask for a group's offsets while the brokers say this; each has its own number as the offset."""
    number = {address: broker for broker, address in ADDRESSES.items()}

    def offsets(kafka: Kafka, group: str, rights: Any) -> dict[tuple[str, int], TopicPartition]:
        return {("in", 0): TopicPartition("in", 0, number[kafka.bootstrap_servers])}

    monkeypatch.setattr(Cluster, "addresses", lambda cluster: ADDRESSES)
    monkeypatch.setattr(module, "_told", lambda kafka, group, rights: told[number[kafka.bootstrap_servers]])
    monkeypatch.setattr(module, "_offsets", offsets)
    return dict(group_offsets(Kafka(bootstrap_servers="a:1,b:2,c:3"), "job"))


@pytest.mark.parametrize("told", [{1: 2, 2: 2, 3: 2}, {1: SILENT, 2: 2, 3: 2}])
def test_offsets_are_those_of_the_broker_that_has_the_group(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    """A broker that does not answer need not agree, as long as most do."""
    assert ask(monkeypatch, told)["in", 0].offset == 2


def test_group_that_no_broker_knows_has_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline then says that it does not exist."""
    assert ask(monkeypatch, dict.fromkeys(ADDRESSES)) == {}


@pytest.mark.parametrize("told", [{1: 1, 2: 2, 3: 2}, {1: None, 2: 2, 3: 2}, {1: 1, 2: SILENT, 3: SILENT}])
def test_group_is_not_read_from_a_broker_that_has_lost_it(monkeypatch: pytest.MonkeyPatch, told: Any) -> None:
    """It is cut off from the others, and its offsets lack what was committed since."""
    with pytest.raises(errors.KafkaFailed, match="do not agree on which of them leads the group 'job': broker 1 says"):
        ask(monkeypatch, told)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (dict.fromkeys(ADDRESSES, SILENT), errors.BrokerUnreachable),
        ({1: SILENT, 2: DENIED, 3: 2}, errors.NotAuthorized),
    ],
)
def test_reason_why_a_group_cannot_be_read_is_told(
    monkeypatch: pytest.MonkeyPatch, told: Any, kind: type[errors.TailraceError]
) -> None:
    """A right that is lacking is not taken for brokers that disagree."""
    with pytest.raises(kind):
        ask(monkeypatch, told)
