"""Network faults between gateway and brokers, request by request, and an outage of a complete pipeline.

Every scenario has its own Kafka behind the proxy; the proof bypasses the proxy. What is quick and deterministic is also
a test (tests/integration/test_network.py), so QUICK runs only KAFKA-17754 with its control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

from faults.scenario import Context, Expect, Result, Scenario
from faults.supervision import proven
from support.drivers import Load
from support.kafkaproxy import ProxiedKafka, proxied
from support.proxy import Fault, nth
from support.supervised import Supervised
from support.transactions import Line, Older, rows
from support.wire import Api
from tailrace.admin.verify import compare
from tailrace.errors import TailraceError
from tailrace.gateway.producers import SinkProducer
from tailrace.progress.marker import Marker

STEPS = (Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.PRODUCE, Api.ADD_OFFSETS, Api.TXN_OFFSET_COMMIT, Api.END_TXN)
FAULTS = (Fault.HOLD, Fault.TWICE, Fault.CUT, Fault.CUT_ANSWER, Fault.RESET_ANSWER)
RECORDS = 2000  # per batch
SOON = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@contextmanager
def line_on(kafka: ProxiedKafka, **options: Any) -> Iterator[Line]:
    """Offer a new sink partition; heal the network afterwards."""
    one = Line.on(kafka, **options)
    try:
        yield one
    finally:
        kafka.proxy.heal()
        one.close()


def result_of(one: Line, batches: int, fault: str, **others: Any) -> Result:
    """Compare the output with the input, and check the marker."""
    wanted = [value for batch in range(batches) for value in one.values(batch, RECORDS)]
    found = one.read()
    compared = compare(iter(wanted), iter(found))
    last = one.task(batches - 1)
    torn = int(one.marker() != Marker.of(last.batch, last.digest, 1))
    exact = not compared.lost and not compared.duplicated
    return Result(
        fault,
        runs=1,
        records=len(wanted),
        lost=compared.lost,
        duplicated=compared.duplicated,
        reordered=int(exact and found != wanted),
        torn=torn,
        lingering=int(one.open()),
        **others,
    )


def parted(one: Line, batch: int, between: Callable[[], None]) -> Callable[[], Iterator[Any]]:
    """Return the rows of a batch in two parts; call `between` once, after the first part has arrived."""
    done: list[bool] = []

    def batches() -> Iterator[Any]:
        values = one.values(batch, RECORDS)
        half = len(values) // 2
        yield rows(values[:half])
        if not done:
            done.append(True)
            one.arrived(values[:half])
            between()
        yield rows(values[half:])

    return batches


def whole(one: Line, batch: int) -> Callable[[], Iterator[Any]]:
    """Return the rows of a batch in one part."""
    return lambda: iter([rows(one.values(batch, RECORDS))])


def late_commit(kafka: ProxiedKafka, fault: str, **others: Any) -> Result:
    """Reproduce KAFKA-17754: the first copy of a retried commit arrives in the middle of the next transaction."""
    with line_on(kafka) as one:
        one.write(0, whole(one, 0))
        kafka.proxy.judge = nth(Api.END_TXN, Fault.HOLD, transaction=one.transaction)
        one.write(1, whole(one, 1))
        one.write(2, parted(one, 2, kafka.proxy.one_held().let_go))
        one.write(3, whole(one, 3))
        return result_of(one, 4, fault, **others)


def kafka_17754(context: Context) -> Sequence[Result]:
    """Reproduce KAFKA-17754 with the guard, and without it."""
    runs = 3 if context.quick else 25
    with proxied() as kafka:
        name = "an EndTxn held back past the next transaction (KAFKA-17754)"
        guarded = [late_commit(kafka, name) for _ in range(runs)]
        with mock.patch.object(SinkProducer, "doubt", ""):
            control = "the same, with a gateway that trusts its producer"
            bare = [late_commit(kafka, control, expect=Expect.FAULT, note="control") for _ in range(runs)]
    return [total(guarded), total(bare)]


def at_each_step(context: Context) -> Sequence[Result]:
    """Lose, delay or repeat each request of a transaction, of a warm producer and of a fresh one."""
    rounds = 1 if context.quick else 4
    found: list[Result] = []
    with proxied() as kafka:
        for fault in FAULTS:
            runs = [one_step(kafka, api, fault) for _ in range(rounds) for api in STEPS]
            context.say(f"{fault.name}: {sum(each.wrong for each in runs)} wrong of {len(runs)}")
            found.append(total(runs))
    return found


def one_step(kafka: ProxiedKafka, api: Api, fault: Fault, **options: Any) -> Result:
    """Write four batches; strike in the second, or in the first if only the first has this request."""
    with line_on(kafka, **options) as one:
        at = 0 if api is Api.INIT_PRODUCER_ID else 1
        for batch in range(4):
            if batch == at:
                kafka.proxy.judge = nth(api, fault, transaction=one.transaction)
            held = kafka.proxy.held
            if fault is Fault.TWICE and batch == at + 1:
                held[-1].let_go()  # any later, it would be a copy that no client sent, which TCP does not make
            late = fault is Fault.HOLD and batch == at + 1
            one.write(batch, parted(one, batch, held[-1].let_go) if late else whole(one, batch))
        if not kafka.proxy.faults:
            raise RuntimeError(f"the fault {fault.name} of {api.name} did not strike")
        return result_of(one, 4, f"a request of a transaction: {WORDS[fault]}")


WORDS = {
    Fault.DROP: "never arrives, and nobody says so",
    Fault.CUT: "its connection is cut before it arrives",
    Fault.CUT_ANSWER: "its connection is closed before the answer",
    Fault.RESET_ANSWER: "its connection is reset before the answer",
    Fault.HOLD: "arrives again in the next transaction",
    Fault.TWICE: "arrives over two connections",
}


def dropped(context: Context) -> Sequence[Result]:
    """Drop a request without closing its connection: the client's own timeout must end it."""
    del context
    with proxied() as kafka:
        options = {"socket.timeout.ms": 2000, "request.timeout.ms": 2000}  # else 60 s for each
        return [total([one_step(kafka, api, Fault.DROP, **options) for api in STEPS])]


def given_up(context: Context) -> Sequence[Result]:
    """Stall an attempt at each step; another executor takes over; then the first one's request arrives."""
    rounds = 1 if context.quick else 4
    with proxied() as kafka:
        return [total([one_zombie(kafka, api) for _ in range(rounds) for api in STEPS])]


def one_zombie(kafka: ProxiedKafka, api: Api) -> Result:
    """Run one case of `given_up`."""
    with line_on(kafka) as one, Older(one) as older:
        one.write(0, whole(one, 0))
        older.once(1, whole(one, 1))
        at = 2
        if api is Api.INIT_PRODUCER_ID:
            one.write(2, whole(one, 2))  # so that the older attempt needs a fresh producer
            at = 3
        kafka.proxy.judge = nth(api, Fault.DELAY, client=older.client)
        with ThreadPoolExecutor(1) as pool:
            fresh = replaced(older) if api is Api.INIT_PRODUCER_ID else older
            attempt = pool.submit(fresh.once, at, whole(one, at))
            held = kafka.proxy.one_held()
            one.write(at, whole(one, at))
            one.write(at + 1, whole(one, at + 1))
            held.let_go()
            error = attempt.exception(60)
        if error is not None and not isinstance(error, TailraceError):
            raise error
        one.write(at + 2, whole(one, at + 2))
        return result_of(one, at + 3, "an abandoned attempt continues, from each step")


def replaced(older: Older) -> Older:
    """Close the older attempt's producer, so that it needs a fresh one."""
    older.close()
    return older


def expired(context: Context) -> Sequence[Result]:
    """Let the brokers abort a transaction in mid-batch, because it exceeds transaction.timeout.ms."""
    runs = 1 if context.quick else 5
    found: list[Result] = []
    with proxied(SOON) as kafka:
        for _ in range(runs):
            with line_on(kafka, **{"transaction.timeout.ms": 1000}) as one:
                one.write(0, whole(one, 0))
                one.write(1, parted(one, 1, one.ended))
                one.write(2, whole(one, 2))
                found.append(result_of(one, 3, "transaction.timeout.ms expires in mid-batch"))
    return [total(found)]


def outage(context: Context) -> Sequence[Result]:
    """Block all traffic between a pipeline (driver and gateway) and Kafka, both ways."""
    seconds = 10.0 if context.quick else 90.0
    kinds = {"silently": True} if context.quick else {"silently": True, "with connections refused": False}
    found = []
    with proxied() as kafka:
        for number, (how, silent) in enumerate(kinds.items()):
            one = Supervised(kafka.proxied_servers, kafka.bootstrap_servers, context.folder / str(number))
            with Load(one.direct, one.source, 1000) as load, one:
                one.more(number=3)
                began = time.monotonic()
                kafka.proxy.outage(silent=silent)
                time.sleep(seconds)  # the fault itself
                kafka.proxy.restore()
                one.more(number=3)
                took = time.monotonic() - began - seconds
                load.stop()
                one.drained(load)
            restarts = len(one.codes) - 1
            context.say(f"outage, {how}: {restarts} restarts, codes {one.codes[:-1]}, {took:.0f} s to continue")
            note = f"continued after {took:.0f} s, {restarts} restarts"
            found.append(proven(one, f"an outage of {seconds:.0f} s, both ways, {how}", note=note))
    return found


def total(results: Sequence[Result]) -> Result:
    """Add up the runs of one fault into one row."""
    first = results[0]
    counts = ("runs", "records", "lost", "duplicated", "reordered", "torn", "lingering", "ids", "refused")
    sums = {name: sum(getattr(each, name) for each in results) for name in counts}
    return Result(first.fault, **sums, note=first.note, expect=first.expect)


SCENARIOS = (
    Scenario("kafka-17754", "Network", "promised", kafka_17754),
    Scenario("requests", "Network", "promised", at_each_step, quick=False),
    Scenario("requests-dropped", "Network", "promised", dropped, quick=False),
    Scenario("attempt-given-up", "Zombies", "promised", given_up, quick=False),
    Scenario("transaction-expired", "Brokers", "promised", expired, quick=False),
    Scenario("outage", "Network", "promised", outage, quick=False),
)
