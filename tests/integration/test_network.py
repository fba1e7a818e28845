"""Requests lost, delayed or sent twice between a gateway and its brokers, with and without the guard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from support.kafkaproxy import ProxiedKafka, proxied
from support.proxy import Fault, Judge, nth
from support.transactions import Line, Older, connected, rows
from support.wire import Api
from tailrace.config import Kafka
from tailrace.errors import BrokerUnreachable, DriverFenced, KafkaFailed, RecordTooLarge, TailraceError
from tailrace.gateway import producers
from tailrace.kafka.clients import add_offsets
from tailrace.kafka.cluster import Cluster
from tailrace.progress.ledger import Ledger
from tailrace.progress.ledger_topic import LEDGER_SETTINGS
from tailrace.progress.marker import Marker, driver_id
from tailrace.progress.plan import BatchId, Range
from tailrace.progress.stream_plan import Slice, StreamPlan
from tailrace.testing import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.takes(14)]

STEPS = [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.PRODUCE, Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT, Api.END_TXN]
NARROW = {"max.message.bytes": "1000"}


@pytest.fixture(scope="module")
def network() -> Iterator[ProxiedKafka]:
    """Start one broker, which soon aborts expired transactions, behind a proxy."""
    with proxied({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}) as kafka:
        yield kafka


@pytest.fixture
def line(network: ProxiedKafka) -> Iterator[Line]:
    """Return a sink partition whose gateway connects through the proxy."""
    with connected(network) as one:
        yield one


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the gateway keep its producer, whatever librdkafka logs."""
    monkeypatch.setattr(producers.SinkProducer, "doubt", "")


def all_of(line: Line, batches: int) -> list[bytes]:
    """Return what must come out, in this order."""
    return [value for batch in range(batches) for value in line.values(batch)]


def late_commit(line: Line) -> list[bytes | None]:
    """Replay KAFKA-17754: delay batch 1's commit so that it is sent again; the first one arrives in mid-batch 2."""
    proxy = line.kafka.proxy
    line.write(0)
    proxy.judge = nth(Api.END_TXN, Fault.HOLD, transaction=line.transaction)
    line.write(1)
    held = proxy.one_held()

    def in_two_parts() -> Iterator[Any]:
        values = line.values(2)
        yield rows(values[:5])
        line.arrived(values[:5])
        held.let_go()
        yield rows(values[5:])

    line.write(2, in_two_parts)
    line.write(3)
    return line.read()


def test_commit_that_arrives_in_the_next_transaction_ends_nothing(line: Line) -> None:
    """The gateway has noticed the retransmission, and has taken a new epoch."""
    assert late_commit(line) == all_of(line, 4)
    assert line.failures == []


@pytest.mark.usefixtures("unguarded")
def test_late_commit_duplicates_without_the_guard(network: ProxiedKafka) -> None:
    """As a control, the same trace harms a gateway that trusts its producer; one of a few tries is enough."""
    surplus = 0
    for _ in range(5):
        one = Line.on(network)
        try:
            found = late_commit(one)
        finally:
            network.proxy.heal()
            one.close()
        surplus = len(found) - len(set(found))
        if surplus:
            break
    assert surplus, one.failures


def late_marker(line: Line) -> Marker | None:
    """Delay the marker of batch 1 so that it is sent again; the first one arrives after the marker of batch 2."""
    proxy = line.kafka.proxy
    line.write(0)
    proxy.judge = nth(Api.TXN_OFFSET_COMMIT, Fault.HOLD, transaction=line.transaction)
    line.write(1)
    older = proxy.one_held()
    proxy.judge = nth(Api.END_TXN, Fault.DELAY, transaction=line.transaction)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(line.write, 2)
        commit = proxy.one_held(after=older)
        older.let_go()
        commit.let_go()
        task.result(60)
    return line.marker()


def test_marker_that_arrives_in_the_next_transaction_is_refused(line: Line) -> None:
    """It would claim that batch 2 was not written, so that it would be written again."""
    assert late_marker(line) == Marker.of(line.task(2).batch, line.task(2).digest, 1)


@pytest.mark.usefixtures("unguarded")
def test_late_marker_reverts_a_batch_without_the_guard(line: Line) -> None:
    """This is the control."""
    assert late_marker(line) == Marker.of(line.task(1).batch, line.task(1).digest, 1)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_ANSWER, Fault.RESET_ANSWER, Fault.HOLD])
@pytest.mark.parametrize("api", STEPS)
def test_fault_at_any_step_neither_loses_nor_repeats(line: Line, api: Api, fault: Fault) -> None:
    """A delayed request arrives in the middle of the next batch."""
    proxy = line.kafka.proxy
    if api is not Api.INIT_PRODUCER_ID:
        line.write(0)
    proxy.judge = nth(api, fault, transaction=line.transaction)
    if api is Api.INIT_PRODUCER_ID:
        line.write(0)
    line.write(1)
    assert len(proxy.faults) == 1

    def in_two_parts() -> Iterator[Any]:
        values = line.values(2)
        yield rows(values[:5])
        line.arrived(values[:5])
        for each in proxy.held:
            each.let_go()
        yield rows(values[5:])

    line.write(2, in_two_parts)
    line.write(3)
    assert line.read() == all_of(line, 4)
    assert line.marker() == Marker.of(line.task(3).batch, line.task(3).digest, 1)


@pytest.mark.parametrize("api", STEPS)
def test_abandoned_attempt_that_continues_changes_nothing(line: Line, api: Api) -> None:
    """It hangs at each step, another executor's gateway takes over, and then its request arrives."""
    line.write(0)
    proxy = line.kafka.proxy
    with Older(line) as older:
        if api is not Api.INIT_PRODUCER_ID:
            older.once(1)
        proxy.judge = nth(api, Fault.DELAY, client=older.client)
        batch = 1 if api is Api.INIT_PRODUCER_ID else 2
        with ThreadPoolExecutor(1) as pool:
            attempt = pool.submit(older.once, batch)
            held = proxy.one_held()
            line.write(batch)
            line.write(batch + 1)
            held.let_go()
            error = attempt.exception(60)
        assert error is None or isinstance(error, TailraceError)
        line.write(batch + 2)
    assert line.read() == all_of(line, batch + 3)


def test_expired_transaction_is_written_again(line: Line) -> None:
    """The broker has aborted it in mid-batch; the attempt fails and reports how long a transaction may take."""
    line.options |= {"transaction.timeout.ms": 1000}
    waited: list[bool] = []

    def slow() -> Iterator[Any]:
        values = line.values(1)
        yield rows(values[:5])
        if not waited:
            waited.append(True)
            line.arrived(values[:5])
            line.ended()
        yield rows(values[5:])

    line.write(0)
    line.write(1, slow)
    line.write(2)
    assert line.read() == all_of(line, 3)
    assert len(line.failures) == 1
    assert "a transaction may take 1 s" in line.failures[0]
    # Only a longer transaction helps the batch that is open: it is written again as it was planned.
    assert "next: raise sink.options: transaction.timeout.ms above 1000" in line.failures[0]


def test_broker_that_is_down_leaves_no_commit_in_doubt(line: Line) -> None:
    """A connection that was never opened has carried no request: the producer stays, and no attempt fails."""
    line.options |= {"bootstrap.servers": f"127.0.0.1:1,{line.kafka.proxied_servers}"}
    for batch in range(4):
        line.write(batch)
    assert line.failures == []
    assert line.gateway.sinks.counts.created == 1
    assert line.read() == all_of(line, 4)


def answers_held(transaction: str) -> Judge:
    """Hold the answers to a transaction's next records, and to the addition of offsets to it."""
    produced = nth(Api.PRODUCE, Fault.DELAY_ANSWER, transaction=transaction)
    added = nth(Api.ADD_OFFSETS, Fault.DELAY_ANSWER, transaction=transaction)
    return lambda request: produced(request) or added(request)


def test_refused_record_is_named_although_the_refusal_comes_while_the_marker_is_added(line: Line) -> None:
    """At first, librdkafka reports only that it is in the wrong state."""
    line.write(0)
    Cluster(Kafka(bootstrap_servers=line.kafka.bootstrap_servers)).ensure(narrow := f"{line.sink}.narrow", 1, 1, NARROW)
    proxy = line.kafka.proxy
    proxy.judge = answers_held(line.transaction)

    def sent() -> Iterator[Any]:
        yield rows([os.urandom(5000)])
        proxy.one_held()

    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(line.gateway.write, replace(line.task(1), topic=narrow), sent())
        # Both may be held before this thread looks for the first time.
        wait_until(lambda: len(proxy.held) > 1, "the refusal and the addition to be held")
        refusal, addition = proxy.held
        refusal.let_go()
        addition.let_go()
        with pytest.raises(RecordTooLarge, match=narrow):
            attempt.result(60)


def test_refused_plan_is_named_although_the_refusal_comes_while_the_positions_are_added(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for the driver's transaction."""
    proxy, topic = line.kafka.proxy, f"{line.pipeline}.plans"
    Cluster(Kafka(bootstrap_servers=line.kafka.bootstrap_servers)).ensure(topic, 1, 1, LEDGER_SETTINGS | NARROW)
    kafka = Kafka(bootstrap_servers=line.kafka.proxied_servers)
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger, ThreadPoolExecutor(1) as pool:
        ledger.take()
        plan = StreamPlan(line.pipeline, "q", BatchId(0), (Range("in", 0, 0, 1),), (Slice("in-0:0-1"),), "v1\n{}\n{}")
        ledger.write(plan, {(line.sink, 0): 0})
        large = replace(plan, batch=BatchId(1), slices=(Slice(os.urandom(3000).hex()),))
        proxy.judge = answers_held(driver_id(line.pipeline))
        group = ledger._consumer.consumer_group_metadata()  # type: ignore[union-attr]
        asked_late = SimpleNamespace(consumer_group_metadata=lambda: (proxy.one_held(), group)[1], close=lambda: None)
        monkeypatch.setattr(ledger, "_consumer", asked_late)  # otherwise the offsets overtake the plan
        attempt = pool.submit(ledger.write, large, {(line.sink, 0): 1})
        # Both may be held before this thread looks for the first time.
        wait_until(lambda: len(proxy.held) > 1, "the refusal and the addition to be held")
        refusal, addition = proxy.held
        refusal.let_go()
        addition.let_go()
        with pytest.raises(RecordTooLarge, match="writing the plan of batch 1"):
            attempt.result(60)


def plans(line: Line) -> tuple[Kafka, str, StreamPlan]:
    """Return the proxied brokers, the topic of a ledger, and a first plan to write to it."""
    plan = StreamPlan(line.pipeline, "q", BatchId(0), (Range("in", 0, 0, 1),), (Slice("in-0:0-1"),), "v1\n{}\n{}")
    return Kafka(bootstrap_servers=line.kafka.proxied_servers), f"{line.pipeline}.plans", plan


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_ANSWER, Fault.DELAY, Fault.DELAY_ANSWER])
@pytest.mark.parametrize("api", [Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT, Api.END_TXN])
def test_driver_that_asks_in_vain_whether_it_leads_can_write_the_next_plan(
    line: Line, monkeypatch: pytest.MonkeyPatch, api: Api, fault: Fault
) -> None:
    """The transaction with which it asked does not stand in the way once the brokers answer again."""
    proxy, (kafka, topic, plan) = line.kafka.proxy, plans(line)
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger:
        ledger.take()
        ledger.positions({(line.sink, 0): 0})  # brokers without any group yet would need longer for the first one
        assert not ledger.overtaken()  # nor does the question wait for a group that is new
        ledger.write(plan, {(line.sink, 0): 0})
        with monkeypatch.context() as patched:
            patched.setattr("tailrace.progress.ledger._OFFSETS_LIMIT", 0.5)
            proxy.judge = lambda request: fault if request.api == api else None
            assert not ledger.overtaken()
        assert proxy.faults
        proxy.heal()
        second = replace(plan, batch=BatchId(1))
        ledger.write(second, {(line.sink, 0): 1})
        assert ledger.latest() == second
        assert not ledger.overtaken()


def test_question_that_expires_unanswered_is_not_taken_for_a_newer_driver(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers report both with the same error, but a supervisor must restart only the expired driver."""
    proxy, (kafka, topic, plan) = line.kafka.proxy, plans(line)
    monkeypatch.setattr("tailrace.progress.fences.TRANSACTION_TIMEOUT", 1.0)
    direct = Cluster(Kafka(bootstrap_servers=line.kafka.bootstrap_servers))

    def markers() -> int:
        places = [("__consumer_offsets", number) for number in range(direct.topics()["__consumer_offsets"])]
        return sum(direct.latest(places).values())

    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger:
        ledger.take()
        ledger.positions({(line.sink, 0): 0})  # brokers without any group yet would need longer for the first one
        assert not ledger.overtaken()  # nor does the question wait for a group that is new
        ledger.write(plan, {(line.sink, 0): 0})
        ledger.positions({(line.sink, 0): 0})  # its marker has come, and is not taken for the one that aborts
        monkeypatch.setattr("tailrace.progress.ledger._OFFSETS_LIMIT", 0.5)
        proxy.judge = lambda request: Fault.DELAY if request.api == Api.END_TXN else None
        before = markers()
        assert not ledger.overtaken()
        wait_until(lambda: markers() >= before + 2, "the offset, and the brokers' marker that aborts it", 30)
        proxy.heal()
        assert not ledger.overtaken()
        with pytest.raises(KafkaFailed, match="they abort one after 1 s"):
            ledger.overtaken(sure=True)
        with pytest.raises(KafkaFailed, match="they abort one after 1 s"):
            ledger.write(replace(plan, batch=BatchId(1)), {(line.sink, 0): 1})


def test_newer_driver_is_noticed_after_a_question_that_was_not_answered(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next plan asks again."""
    proxy, (kafka, topic, plan) = line.kafka.proxy, plans(line)
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger, Ledger(line.pipeline, topic, kafka, 1, 1) as newer:
        ledger.take()
        ledger.positions({(line.sink, 0): 0})
        ledger.write(plan, {(line.sink, 0): 0})
        with monkeypatch.context() as patched:
            patched.setattr("tailrace.progress.ledger._OFFSETS_LIMIT", 0.5)
            proxy.judge = lambda request: Fault.DELAY if request.api == Api.ADD_OFFSETS else None
            assert not ledger.overtaken()
            with pytest.raises(KafkaFailed, match="asking whether a newer driver has taken over: no broker has ended"):
                ledger.overtaken(sure=True)
        proxy.heal()
        assert not ledger.overtaken(sure=True)
        newer.take()
        with pytest.raises(DriverFenced, match="a newer driver has taken over"):
            ledger.write(replace(plan, batch=BatchId(1)), {(line.sink, 0): 1})
        assert ledger.overtaken()


def test_end_of_a_question_that_arrives_in_the_next_transaction_aborts_no_plan(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would read on, and its ledger would have the former plan although the positions are of the next."""
    proxy, (kafka, topic, plan) = line.kafka.proxy, plans(line)
    direct = Cluster(Kafka(bootstrap_servers=line.kafka.bootstrap_servers))
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger:
        ledger.take()
        ledger.positions({(line.sink, 0): 0})
        ledger.write(plan, {(line.sink, 0): 0})
        proxy.judge = nth(Api.END_TXN, Fault.HOLD, transaction=driver_id(line.pipeline))
        assert not ledger.overtaken()
        held, before = proxy.one_held(), direct.latest([(topic, 0)])[topic, 0]

        def late(producer: Producer, *others: Any) -> None:
            producer.flush(10)
            held.let_go()
            wait_until(lambda: direct.latest([(topic, 0)])[topic, 0] == before + 2, "the plan and its marker", 30)
            add_offsets(producer, *others)

        second = replace(plan, batch=BatchId(1))
        with monkeypatch.context() as patched:
            patched.setattr("tailrace.progress.ledger.add_offsets", late)
            ledger.write(second, {(line.sink, 0): 1})
        assert ledger.latest() == second
        assert ledger.positions({(line.sink, 0): 0}) == {(line.sink, 0): 1}
        third = replace(plan, batch=BatchId(2))
        ledger.write(third, {(line.sink, 0): 2})
        assert ledger.latest() == third


def fail_second_plan(line: Line, ledger: Ledger, plan: StreamPlan, monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    """Write a plan, then one of whose transaction no request of a kind arrives until `heal`."""
    ledger.take()
    ledger.positions({(line.sink, 0): 0})
    ledger.write(plan, {(line.sink, 0): 0})
    with monkeypatch.context() as patched:
        patched.setattr("tailrace.progress.ledger._OFFSETS_LIMIT", 0.5)
        line.kafka.proxy.judge = lambda request: Fault.CUT if request.api == api else None
        with pytest.raises(BrokerUnreachable):
            ledger.write(replace(plan, batch=BatchId(1)), {(line.sink, 0): 1})


def test_plan_that_expires_unanswered_is_not_taken_for_a_newer_driver(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are away while positions are written abort the transaction; the driver starts over after that."""
    kafka, topic, plan = plans(line)
    monkeypatch.setattr("tailrace.progress.fences.TRANSACTION_TIMEOUT", 1.0)
    direct = Cluster(Kafka(bootstrap_servers=line.kafka.bootstrap_servers))
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger:
        fail_second_plan(line, ledger, plan, monkeypatch, Api.TXN_OFFSET_COMMIT)
        wait_until(lambda: direct.latest([(topic, 0)])[topic, 0] >= 6, "the brokers' marker that aborts the plan", 30)
        line.kafka.proxy.heal()
        assert not ledger.overtaken()
        with pytest.raises(KafkaFailed, match="they abort one after 1 s"):
            ledger.write(replace(plan, batch=BatchId(1)), {(line.sink, 0): 1})


@pytest.mark.parametrize("api", [Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT])
def test_driver_can_write_the_plan_again_whose_positions_were_not_answered(
    line: Line, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    """The transaction that it left open is ended first."""
    kafka, topic, plan = plans(line)
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger:
        fail_second_plan(line, ledger, plan, monkeypatch, api)
        line.kafka.proxy.heal()
        for number in (1, 2):
            again = replace(plan, batch=BatchId(number))
            ledger.write(again, {(line.sink, 0): number})
            assert ledger.latest() == again
            assert ledger._asked is None
        assert not ledger.overtaken()


@pytest.mark.parametrize("api", [Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT])
def test_newer_driver_is_noticed_after_a_plan_that_was_not_answered(
    line: Line, monkeypatch: pytest.MonkeyPatch, api: Api
) -> None:
    """It has aborted the transaction long before it could expire."""
    kafka, topic, plan = plans(line)
    with Ledger(line.pipeline, topic, kafka, 1, 1) as ledger, Ledger(line.pipeline, topic, kafka, 1, 1) as newer:
        fail_second_plan(line, ledger, plan, monkeypatch, api)
        line.kafka.proxy.heal()
        newer.take()
        assert ledger.overtaken()
        with pytest.raises(DriverFenced, match="a newer driver has taken over"):
            ledger.write(replace(plan, batch=BatchId(1)), {(line.sink, 0): 1})
